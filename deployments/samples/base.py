"""A small base dataset as an older run would have left it: mostly code, ids and masks only.

Enters: a folder, and the tokenizer file of the model that shall be trained for. Leaves: one JSONL
file of 180 rows, 139 of them code: the 77% that an expansion is to bring down. Invented.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

_N_CODE, _N_OTHER = 139, 41
_VERBS = ("parses", "sorts", "merges", "counts", "validates", "caches", "splits")
_NOUNS = ("log lines", "invoices", "intervals", "routes", "tokens")
_TOPICS = ("tides", "bread", "maps", "violins", "glaciers")


def write_base(path: Path, tokenizer_file: Path) -> Path:
    """Write the base dataset; the same bytes each time."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for index in range(_N_CODE + _N_OTHER):
            question, answer, domain = _write_row(index)
            prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n"
            prompt_ids = tokenizer.encode(prompt, add_special_tokens=False).ids
            answer_ids = tokenizer.encode(answer, add_special_tokens=False).ids
            row = {
                "id": f"old-{index:04d}",
                "input_ids": prompt_ids + answer_ids,
                "loss_mask": [0] * len(prompt_ids) + [1] * len(answer_ids),
                "domain": domain,
                "source": "old",
            }
            file.write(json.dumps(row) + "\n")
    return path


def _write_row(index: int) -> tuple[str, str, str]:
    if index < _N_CODE:
        verb, noun = _VERBS[index % len(_VERBS)], _NOUNS[index % len(_NOUNS)]
        name = f"{verb}_{noun.replace(' ', '_')}_{index}"
        body = f"def {name}(items):\n    return sorted(set(items))[:{index + 1}]\n"
        return (
            f"Write a function that {verb} {noun}, at most {index + 1} of them.",
            f"A set, sorted, is enough.\n</think>\n\n```python\n{body}```<|im_end|>",
            "code",
        )
    topic = _TOPICS[index % len(_TOPICS)]
    return (
        f"Tell me {index - _N_CODE + 2} things about {topic}.",
        f"Keep it short.\n</think>\n\nThere is much to say about {topic}.<|im_end|>",
        "general",
    )
