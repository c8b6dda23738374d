"""Hand-written rows with the quirks that the real datasets have; all content is invented.

Enters: nothing. Leaves: for each source, rows in its own shape that are odd on purpose. It exists
so that a first run meets every oddity: empty turns, unknown roles, tools as "null" or "[]",
Python-quoted calls, literal line ends, an image, a broken tool list.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]

HERMES_INTRODUCTION = (
    "You are a function calling AI model. You are provided with function signatures within "
    "<tools></tools> XML tags. You may call one or more functions to assist with the user query. "
    "Don't make assumptions about what values to plug into functions. Here are the available "
    "tools: <tools> {tools} </tools> Use the following pydantic model json schema for each tool "
    'call you will make: {{"title": "FunctionCall", "type": "object"}} For each function call '
    "return a json object with function name and arguments within <tool_call></tool_call> XML "
    'tags as follows:\n<tool_call>\n{{"arguments": <args-dict>, "name": <function-name>}}\n'
    "</tool_call>"
)
_TIDES = (
    '[{"type": "function", "function": {"name": "get_tides", "description": "Tides of a harbour.", '
    '"parameters": {"type": "dict", "properties": {"harbour": {"type": "str"}}}}}]'
)
_LABEL = {
    "ability_en": ["text writing"],
    "ability_zh": ["文本写作"],
    "cate_ability_en": ["creativity and design"],
    "cate_ability_zh": ["创意与设计"],
}


def _infinity(number: int, *turns: tuple[str, str | None], language: str = "en") -> Row:
    conversations = [{"from": role, "value": text} for role, text in turns]
    return {
        "id": f"inf-quirk-{number}",
        "conversations": conversations,
        "label": _LABEL,
        "langdetect": language,
        "source": "Subjective",
    }


def _hermes(number: int, tools: str, *turns: tuple[str, str]) -> Row:
    return {
        "id": f"hermes-quirk-{number}",
        "conversations": [{"from": role, "value": text} for role, text in turns],
        "tools": tools,
        "category": "Harbours",
        "subcategory": "Tides",
        "task": "Look up tides",
    }


def _agent(number: int, messages: list[Row]) -> Row:
    return {
        "id": f"agent-quirk-{number}",
        "category": "tool_use",
        "difficulty": "easy",
        "turns": 1,
        "domain": "harbours",
        "language": "en",
        "messages": messages,
        "tools": [],
        "metadata": {},
    }


def list_quirks() -> dict[str, list[Row]]:
    """Give the odd rows of each source, by its name in the registry."""
    asked = ("human", "When is high tide in Whitby?")
    called = (
        "gpt",
        '<tool_call>\n{"name": "get_tides", "arguments": {"harbour": "W"}}\n</tool_call>',
    )
    answered = ("tool", '<tool_response>\n{"high": "14:05"}\n</tool_response>')
    more = ("human", "And the next low tide?")
    system = ("system", HERMES_INTRODUCTION.format(tools=_TIDES))
    quoted = (
        "gpt",
        "<tool_call>\n{'name': 'get_tides', 'arguments': {'harbour': 'W'}}\n</tool_call>",
    )
    escaped = (
        "gpt",
        '<tool_call>\\n{"name": "get_tides", "arguments": {"harbour": "W"}}\\n</tool_call>',
    )
    broken = ("gpt", '<tool_call>\n{"name": "get_tides", "arguments": {harbour\n</tool_call>')
    tides = [{"role": "user", "content": "Are the tides strong at Whitby today?"}]
    return {
        "infinity-instruct-0625": [
            _infinity(0, ("human", ""), ("gpt", "There was no question.")),
            _infinity(1, ("human", "   \n"), ("gpt", "Nor here.")),
            _infinity(2, ("narrator", "The door opens."), ("human", "Who is it?")),
            _infinity(3, ("gpt", "Hello! How can I help?")),
            _infinity(4, ("human", "First part of a request."), ("human", "Second part.")),
            _infinity(5, ("human", "A title"), ("gpt", "Noted."), ("system", "Be brief.")),
            _infinity(6, ("system", ""), ("human", "Name a moth that flies by day."), ("gpt", "")),
            _infinity(7, ("human", "Wie heißt die Hauptstadt von Österreich?"), language="de"),
            _infinity(8, ("human", "Broken \ud83d emoji in a request"), ("gpt", "I see.")),
            _infinity(9, ("human", "Windows line ends:\r\nWhat is a carriage return?")),
        ],
        "webinstructsub": [
            {"question": "", "answer": "x = 3", "source": "mathstackexchange", "index": 9001},
            {"question": None, "answer": "none", "source": "socratic", "index": 9002},
        ],
        "codefeedback": [
            {"query": " ", "answer": "?", "resource": "evol_instruct", "lang": "python"},
            {"query": 404, "answer": "Not found.", "resource": "evol_instruct", "lang": "go"},
        ],
        "metamathqa": [
            {
                "type": "GSM_SV",
                "query": "",
                "original_question": "",
                "response": "The answer is: 0",
            },
        ],
        "hermes-function-calling-v1": [
            _hermes(0, _TIDES, system, asked, quoted, answered, more),
            _hermes(1, _TIDES, system, ("human", "High tide in Oban?"), escaped, answered),
            _hermes(2, _TIDES, system, asked, broken, answered, more),
            _hermes(
                3, "null", ("system", "You have no tools."), ("human", "Say hello in Gaelic.")
            ),
            _hermes(
                4,
                "[]",
                ("system", HERMES_INTRODUCTION.format(tools='[{"name": "get_tides", "para')),
                asked,
            ),
            _hermes(5, "[]", system, ("human", "When is low tide in Leith?"), called),
            _hermes(6, _TIDES[:-1] + ", " + _TIDES[1:], system, ("human", "Tides at Wick?")),
            _hermes(7, "null", asked, called, answered, more),
            _hermes(8, _TIDES, system, asked, answered),
        ],
        "agent-training-dataset": [
            _agent(0, [{"role": "critic", "content": "Not convinced."}, *tides]),
            _agent(1, [{"role": "user", "content": [{"type": "text", "text": "See the chart:"},
                                                    {"type": "image_url", "image_url": "x"}]}]),
            _agent(2, [{"role": "user", "content": [{"type": "text", "text": "Two parts "},
                                                    {"type": "text", "text": "of one text."}]}]),
            _agent(3, [*tides, {"role": "assistant", "content": None, "tool_calls": []}, *tides]),
            _agent(4, []),
        ],
    }  # fmt: skip
