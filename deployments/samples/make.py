"""Sample rows in the true shapes of the six sources, for a first run without a network.

Enters: a folder. Leaves: one JSONL file a source, named after its entry in the registry, the same
bytes on every machine. All content is invented. It exists so that the demo and the tests meet
what the real datasets hold: several languages, LaTeX, several turns, tool loops in two manners,
duplicates within and across sources, and rows that must be refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deployments.samples.quirks import HERMES_INTRODUCTION, Row, list_quirks

_SEEDS: dict[str, Any] = json.loads(
    Path(__file__).with_name("seeds.json").read_text(encoding="utf-8")
)


def write_samples(folder: Path) -> dict[str, Path]:
    """Write the sample files.

    Args:
        folder: Where to; created if need be.

    Returns:
        The file of each source, by its name in the registry.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    for name, rows in make_rows().items():
        paths[name] = folder / f"{name}.jsonl"
        # ASCII escapes, because one of the rows holds half a surrogate pair.
        lines = [json.dumps(row) + "\n" for row in rows]
        paths[name].write_text("".join(lines), encoding="utf-8")
    return paths


def make_rows() -> dict[str, list[Row]]:
    """Make the rows of each source, oddities spread among the plain ones."""
    maths = _make_maths()
    plain = {
        "infinity-instruct-0625": _make_general(maths),
        "webinstructsub": _make_science(),
        "codefeedback": _make_code(),
        "metamathqa": maths,
        "hermes-function-calling-v1": _make_hermes(),
        "agent-training-dataset": _make_agent(),
    }
    quirks = list_quirks()
    return {name: _spread(rows, quirks[name]) for name, rows in plain.items()}


def _spread(rows: list[Row], quirks: list[Row]) -> list[Row]:
    step = max(1, len(rows) // (len(quirks) + 1))
    mixed = list(rows)
    for index, quirk in enumerate(quirks):
        mixed.insert((index + 1) * step + index, quirk)
    return mixed


def _numbers(index: int) -> dict[str, int]:
    return {"a": 2 + index % 7, "b": 11 + index * 5 % 37, "c": 4 + index * 3 % 11}


def _make_general(maths: list[Row]) -> list[Row]:
    topics, frames = _SEEDS["topics"], _SEEDS["frames"]
    asked = [
        (frame.format(topic=topics[i * 4 % 15], other=topics[(i * 4 + 7) % 15]), "en", "Subjective")
        for i, frame in enumerate(frames * 3)
    ]
    asked += [(text, "zh-cn", "Subjective") for text in _SEEDS["chinese"]]
    # The real one holds a part of MetaMath, and repeats itself.
    asked += [(row["query"], "en", "MetaMath") for row in maths[:24:4]]
    asked += [asked[5], asked[17]]
    rows: list[Row] = []
    for index, (text, language, source) in enumerate(asked):
        is_math = source == "MetaMath"
        turns = [("human", text), ("gpt", "A recorded answer that is generated anew.")]
        if index % 6 == 1:
            turns.insert(0, ("system", "You are a patient tutor. Answer in plain words."))
        if index % 4 == 2:
            turns += [("human", _SEEDS["follow_ups"][index % 5]), ("gpt", "In short: yes.")]
        category = "math ability" if is_math else "creativity and design"
        rows.append(
            {
                "id": f"inf-{index}",
                "conversations": [{"from": role, "value": value} for role, value in turns],
                "label": {
                    "ability_en": ["mathematical calculation" if is_math else "text writing"],
                    "ability_zh": ["数学计算" if is_math else "文本写作"],
                    "cate_ability_en": [category],
                    "cate_ability_zh": ["数学能力" if is_math else "创意与设计"],
                },
                "langdetect": language,
                "source": source,
            }
        )
    return rows


def _make_science() -> list[Row]:
    sources = ("socratic", "stackexchange", "mathstackexchange")
    rows: list[Row] = []
    for index, question in enumerate(_SEEDS["science"] * 5):
        text = question.format(**_numbers(index * 3 + index // 14))
        rows.append(
            {
                "orig_question": text.lower(),
                "orig_answer": "See below.",
                "source": sources[index % 3],
                "question": text,
                "answer": "A recorded answer.",
                "index": 100 + index,
            }
        )
    return [*rows, {**rows[3], "index": 990}, {**rows[8], "index": 991, "answer": "Another one."}]


def _make_code() -> list[Row]:
    tasks, languages = _SEEDS["code_tasks"], _SEEDS["code_languages"]
    rows: list[Row] = []
    for index in range(66):
        language = languages[index * 5 % 6]
        frame = _SEEDS["code_frames"][index % 5]
        rows.append(
            {
                "query": frame.format(language=language, task=tasks[index % 11], n=3 + index % 4),
                "answer": f"```{language}\n...\n```",
                "resource": ("evol_instruct", "code_exercise", "leetcode")[index % 3],
                "lang": language,
            }
        )
    return [*rows, {**rows[12], "answer": "Another answer."}]


def _make_maths() -> list[Row]:
    rows: list[Row] = []
    for index, story in enumerate(_SEEDS["stories"] * 6):
        text = story.format(name=_SEEDS["names"][index % 7], **_numbers(index))
        kind = _SEEDS["math_types"][index % 6]
        if kind.endswith("FOBAR"):
            text += " If we know that the answer is right, which number was needed most?"
        elif kind.endswith("SV"):
            text = f"Think of an unknown x. {text} Which value of x makes this true?"
        rows.append(
            {
                "type": kind,
                "query": text,
                "original_question": story,
                "response": f"Step by step.\n#### {index}\nThe answer is: {index}",
            }
        )
    # AnsAug: the same query with other answers.
    again = [{**row, "response": "Another way.\nThe answer is: 7"} for row in rows[:36:6]]
    return rows + again


def _make_hermes() -> list[Row]:
    rows: list[Row] = []
    for index, (tool, value) in enumerate(_list_tool_uses() * 2):
        is_second = index >= 27
        tools = json.dumps([{"type": "function", "function": _make_schema(tool)}])
        call = json.dumps({"name": tool["name"], "arguments": {tool["argument"]: value}})
        result = json.dumps({"name": tool["name"], "content": tool["result"]})
        request = tool["request"].format(value=value)
        turns = [
            ("system", HERMES_INTRODUCTION.format(tools=tools)),
            ("human", f"{request} It is for my sister." if is_second else request),
            ("gpt", f"<tool_call>\n{call}\n</tool_call>"),
        ]
        if not is_second or index % 3 == 0:
            turns.append(("tool", f"<tool_response>\n{result}\n</tool_response>"))
            turns.append(("gpt", "Here is what I found."))
        if index % 5 == 4 and not is_second:
            turns += [("human", _SEEDS["follow_ups"][index % 4]), ("gpt", "Gladly.")]
        rows.append(
            {
                "id": f"hermes-{index}",
                "conversations": [{"from": role, "value": text} for role, text in turns],
                "tools": tools,
                "category": "Everyday life",
                "subcategory": tool["argument"],
                "task": tool["description"],
            }
        )
    return [*rows, {**rows[4], "id": "hermes-again"}]


def _make_agent() -> list[Row]:
    rows: list[Row] = []
    for index, (tool, value) in enumerate(_list_tool_uses() * 2):
        is_second = index >= 27
        request = tool["request"].format(value=value)
        opening = "Please be quick:" if is_second else "You are my assistant."
        call: Row = {"name": tool["name"], "arguments": json.dumps({tool["argument"]: value})}
        messages: list[Row] = [
            {"role": "system", "content": "Use the tools where they help. Never guess a value."},
            {"role": "user", "content": f"{opening} {request}"},
            {
                "role": "assistant",
                "content": None,
                "thinking": f"The user wants {tool['name']}.",
                "tool_calls": [{"id": f"call_{index}", "type": "function", "function": call}],
            },
        ]
        if index % 2 == 0:
            content = json.dumps(tool["result"])
            messages.append({"role": "tool", "tool_call_id": f"call_{index}", "content": content})
            messages.append({"role": "assistant", "content": "Done.", "thinking": "Finished."})
        rows.append(
            {
                "id": f"agent-{index}",
                "category": "tool_use",
                "difficulty": ("easy", "medium", "hard")[index % 3],
                "turns": 1 + index % 2,
                "domain": tool["argument"],
                "language": "en",
                "messages": messages,
                "tools": [_make_schema(tool)]
                if index % 3 == 1
                else [{"type": "function", "function": _make_schema(tool)}],
                "metadata": {"template": tool["name"]},
            }
        )
    return rows


def _list_tool_uses() -> list[tuple[Row, str]]:
    return [(tool, value) for tool in _SEEDS["tools"] for value in tool["values"]]


def _make_schema(tool: Row) -> Row:
    properties = {tool["argument"]: {"type": "string", "description": "Which one."}}
    parameters = {"type": "object", "properties": properties, "required": [tool["argument"]]}
    return {"name": tool["name"], "description": tool["description"], "parameters": parameters}
