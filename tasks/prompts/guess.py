"""A mapping for rows that nobody described yet, from the look of the first of them; pure.

Enters: rows. Leaves: a RowMapping that reads them, or why none does. It exists so that a source is
added by looking at a file and not at documentation; what is guessed is shown, written down, and
checked against the rows before it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tasks.errors import SourceError
from tasks.prompts.config import RowMapping
from tasks.prompts.normalize import read_row
from tasks.prompts.record import RowRefused

_MESSAGES = ("messages", "conversations", "conversation", "dialog", "dialogue", "chat", "prompt")
_PROMPTS = (
    "prompt", "instruction", "question", "query", "problem", "input", "user", "text", "task",
)  # fmt: skip
_ANSWERS = ("output", "response", "answer", "completion", "chosen", "solution")
_INPUTS = ("input", "context", "instances.0.input")
_TURNS = ("turns", "questions")
_KEYS = (("role", "content"), ("from", "value"), ("role", "value"), ("speaker", "text"))
_TOOLS = ("tools", "functions", "function")
_IDS = ("id", "uuid", "question_id", "idx", "index")
_LABELS = ("category", "domain", "topic", "subject", "type", "label", "source")
_LANGUAGES = ("language", "lang", "langdetect")
# Of the rows looked at, the share that a guess must read.
_LEAST_READ = 0.5


def guess_mapping(rows: Sequence[object], *, where: str) -> RowMapping:
    """Guess how rows map to conversations.

    Args:
        rows: A source's first rows.
        where: The file, for the error.

    Raises:
        SourceError: No known shape reads half of them; names the keys that there are.
    """
    objects = [row for row in rows if isinstance(row, dict)]
    best: tuple[float, RowMapping] | None = None
    for mapping in _propose(objects):
        share = measure_read(rows, mapping)
        if best is None or share > best[0]:
            best = share, mapping
    if best is None or best[0] < _LEAST_READ:
        keys = ", ".join(sorted({str(key)[:40] for row in objects for key in row})[:20])
        raise SourceError(
            f"no known shape fits the first {len(rows)} rows; their keys are: {keys or 'none'}.",
            where=where,
            remedy="Write the source's mapping by hand: see the registry for examples "
            "(`draftmill sources show NAME`).",
        )
    return best[1]


def measure_read(rows: Sequence[object], mapping: RowMapping) -> float:
    """Measure the share of rows that a mapping reads."""
    n_read = 0
    for row in rows:
        try:
            read_row(row, mapping)
            n_read += 1
        except RowRefused:
            continue
    return n_read / len(rows) if rows else 0.0


def _propose(objects: Sequence[dict[str, object]]) -> Iterator[RowMapping]:
    keys = {key for row in objects for key in row if isinstance(key, str)}
    extras = {
        "tools": _first(_TOOLS, keys),
        "id": _first(_IDS, keys),
        "language": _first(_LANGUAGES, keys),
    }
    label = _first(_LABELS, keys)
    for path in (name for name in (*_MESSAGES, *_PROMPTS) if name in keys):
        messages = list(_list_messages(objects, path))
        for role_key, content_key in _KEYS:
            if any(role_key in message and content_key in message for message in messages):
                in_system = any("<tools>" in str(message.get(content_key)) for message in messages)
                yield RowMapping(
                    messages=path,
                    role_key=role_key,
                    content_key=content_key,
                    tools_in_system=in_system,
                    label=label,
                    **extras,
                )
    for path in (name for name in _TURNS if name in keys):
        yield RowMapping(turns=path, label=label, **extras)
    for path in (name for name in _PROMPTS if name in keys):
        second = next((one for one in _INPUTS if _holds(objects, one) and one != path), None)
        answer = next((name for name in _ANSWERS if name in keys and name != path), None)
        yield RowMapping(prompt=path, input=second, reference=answer, label=label, **extras)


def _first(names: Sequence[str], keys: set[str]) -> str | None:
    return next((name for name in names if name in keys), None)


def _list_messages(objects: Sequence[dict[str, object]], path: str) -> Iterator[dict[str, object]]:
    for row in objects:
        value = row.get(path)
        for one in value if isinstance(value, list) else ():
            yield from (part for part in (one if isinstance(one, list) else [one])
                        if isinstance(part, dict))  # fmt: skip


def _holds(objects: Sequence[dict[str, object]], path: str) -> bool:
    head = path.partition(".")[0]
    return any(head in row for row in objects)
