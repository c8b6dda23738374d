"""The cascade of domains on a hand-labelled invented set: what each rule decides, and how well."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tasks.prompts.config import RowMapping, SourceConfig
from tasks.prompts.domains import choose_domain

LABELLED = {
    "code": [
        "Write a Python function that merges two sorted lists.",
        "Why does this loop never end?\n```python\nwhile True:\n    x = x + 1\n```",
        "def add(a, b):\n    return a - b\nThe result is wrong. Correct it.",
        "Give me an SQL query: SELECT name FROM trams WHERE line = 4, but sorted.",
        "Refactor this class so that the debug output can be switched off.",
        "import os\nimport sys\nWhat do these two lines do?",
        "Explain recursion with a short program in Kotlin.",
        "My bash script deletes too many files when I run the program.",
    ],
    "math": [
        "Solve the equation 3x + 4 = 19.",
        "Ann has 12 pens and gives half of them to Bo. How many pens are left?",
        r"Compute $\int_0^1 x^2 dx$ and show each step.",
        "Prove that the sum of two odd integers is even.",
        "What is the probability of two heads in three throws? Give a fraction.",
        "A circle has a radius of 4 cm. What is its perimeter?",
        "If a train takes 3 hours for 240 km, how much does it take for 400 km?",
    ],
    "science": [
        "Why do electrons of sodium atoms emit light of that wavelength?",
        "How does an enzyme lower the energy that a reaction needs?",
        "What force keeps a planet in its orbit?",
        "Explain osmosis through the membrane of plant cells.",
    ],
    "general": [
        "Write a poem about lighthouses in winter.",
        "Which tram do I take from the harbour to the old town?",
        "Suggest a name for a bakery that sells sourdough only.",
        "Summarise the plot of a novel about two sisters and a violin.",
        "Translate 'good evening' into Gaelic.",
        "What should I pack for a walk along the coast in April?",
        "Was ist der Unterschied zwischen Moos und Farn?",
    ],
}  # fmt: skip
# Rows: what a person says; columns: what the rules say. Raise DOMAIN_RULES_VERSION with a change.
CONFUSION = {
    "code": {"code": 8},
    "math": {"math": 5, "general": 2},
    "science": {"science": 4},
    "general": {"general": 7},
}


def config(**fields: Any) -> SourceConfig:
    return SourceConfig(path="x.jsonl", mapping=RowMapping(prompt="q"), **fields)


def ask(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_the_confusion_table_is_as_recorded() -> None:
    found = {
        label: dict(Counter(choose_domain(ask(text), None, (), config())[0] for text in texts))
        for label, texts in LABELLED.items()
    }
    assert found == CONFUSION


@pytest.mark.parametrize(
    ("labels", "fields", "tools", "text", "expected"),
    [
        (("x", "maths"), {"domain_labels": {"maths": "math"}, "domain": "code"}, None, "Hi",
         ("math", "label")),
        (("x",), {"domain_labels": {"maths": "math"}, "domain": "code"}, None, "Hi",
         ("code", "source")),
        ((), {}, "[{}]", "Solve 2x=4", ("tools", "rules-1:tools")),
        ((), {}, None, "```js\n1+1\n```", ("code", "rules-1:code-signs")),
        ((), {}, None, "Write a Python program.", ("code", "rules-1:code-words")),
        ((), {}, None, r"Is \frac{1}{2} rational?", ("math", "rules-1:math-signs")),
        ((), {}, None, "Name a moss.", ("general", "default")),
    ],
)  # fmt: skip
def test_each_step_of_the_cascade_goes_before_the_next(
    labels: tuple[str, ...], fields: dict[str, Any], tools: str | None, text: str,
    expected: tuple[str, str],
) -> None:  # fmt: skip
    assert choose_domain(ask(text), tools, labels, config(**fields)) == expected


def test_only_what_users_say_counts() -> None:
    turns = [
        {"role": "system", "content": "You write Python code. Debug every program."},
        *ask("Name a moss."),
        {"role": "assistant", "content": "```python\n1\n```"},
        *ask("And a fern."),
    ]
    assert choose_domain(turns, None, (), config())[0] == "general"
