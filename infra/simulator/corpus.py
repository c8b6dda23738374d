"""The invented text that the tokenizer is trained on and that answers are made of.

Enters: nothing but a kind and a number. Leaves: paragraphs of text, the same on every machine. It
exists so that the shipped tokenizer can be rebuilt byte for byte, and so that a simulated answer
reads like English, Chinese, code, mathematics or JSON at about the compression of a real
tokenizer on its own language.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

_WORDS: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "words.json").read_text(encoding="utf-8")
)
NOUNS: list[str] = _WORDS["nouns"]

VERBS: list[str] = _WORDS["verbs"]

ADJECTIVES: list[str] = _WORDS["adjectives"]

ZH: list[str] = _WORDS["chinese"]

THINKING = (
    "Let me @v the @n first. The @a @n tells us how to @v the @n.",
    "The user wants me to @v a @n, so I should @v the @a @n and then @v it.",
    "Okay, so we have a @a @n. If we @v the @n, then the @n is @d and the @n is @d.",
    "Wait, I should check the @n again. The @n depends on the @a @n, not on the @n.",
    "First, @v the @n. Second, @v the @a @n. Third, @v the @n and @v the result.",
    "Hmm, is the @n really @a? Let's @v it: @d + @d = @s, which is @a enough.",
    "So the @n should be @d. Let me verify: the @a @n has @d parts, and each @n is @a.",
    "Alternatively, I could @v the @n, but that would @v the @a @n without a @n.",
)
PROSE = (
    "The @a @n is a @n that people @v when they @v a @n. It does not @v the @n.",
    "To @v the @n, @v the @a @n and @v each @n in turn; the @n will be @a.",
    "**@N.** In general, a @a @n helps you @v the @n because every @n is @a.",
    "1. @V the @n.\n2. @V the @a @n.\n3. @V the @n until the @n is @a.",
    "For example, with a @n of @d and a @n of @d, the total @n is @s.",
    "- The @n should be @a.\n- The @a @n must @v the @n.\n- You can @v the @n later.",
    "In short: @v the @n, @v the @a @n, and don't @v the @n before you @v it.",
    "However, the @a @n isn't always @a. Many @ns @v the @n only after they @v it.",
)
CHINESE = (
    "@z@z@z@z，@z@z@z。@z@z的@z@z@z，@z@z@z@z。",
    "首先，@z@z@z；其次，@z@z的@z；最后，@z@z@z@z。",
    "@z是@z的@z，因此@z@z@z，总数是@d，其中@z占@d。",
    "例如：@z@z@z，@z@z（@z@z）等于@s。",
)
CODE = (
    "```python\ndef @v_@n(@n: list[int], @n: int = @d) -> int:\n    total = 0\n"
    "    for i, value in enumerate(@n):\n        if value > @n:\n            total += value * @d\n"
    "    return total\n```",
    "```python\nclass @N:\n    def __init__(self, @n: str) -> None:\n        self.@n = @n\n\n"
    '    def @v(self) -> str:\n        return f"{self.@n} @n"\n```',
    "```javascript\nconst @n = await @v({ @n: @d });\nfor (const item of @n) {\n"
    "  console.log(item.@n ?? null);\n}\n```",
    "```sql\nSELECT @n, COUNT(*) AS total FROM @ns WHERE @n > @d GROUP BY @n;\n```",
    "The function `@v_@n` takes a @a `@n` and returns the @n. It runs in $O(n)$ time.",
)
MATHS = (
    "We have $\\frac{@d}{@d} x + @d = @s$, so $x = @d$ and the @n is \\boxed{@d}.",
    "Let $f(x) = x^{2} - @dx + @d$. Then $f'(x) = 2x - @d$, and the @n is at $x = @d/2$.",
    "\\[\n\\int_{0}^{@d} x \\, dx = \\frac{@d^2}{2}, \\quad "
    "\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}\n\\]",
    "The @n costs @d dollars and the @n costs @d dollars, so together @d + @d = @s.\n#### @s",
    "By the @a @n, $\\sqrt{a^2 + b^2} \\le @d$ whenever $a \\cdot b = @d$ and $n \\ge @d$.",
)
# @n noun, @v verb, @a adjective, @z Chinese word, @d and @s small and larger numbers.
_SLOT = re.compile("@([nNvVazds])")
KINDS = {"thinking": THINKING, "prose": PROSE, "chinese": CHINESE, "code": CODE, "maths": MATHS}


class _Dice:
    """A splitmix64 stream: the same draws on every Python version and platform."""

    def __init__(self, seed: int) -> None:
        self._state = seed & 0xFFFFFFFFFFFFFFFF

    def below(self, limit: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return (z ^ (z >> 31)) % limit

    def pick(self, words: list[str]) -> str:
        # The smaller of two draws: words early in a list are the more frequent ones, as in prose.
        return words[min(self.below(len(words)), self.below(len(words)))]


def _fill(template: str, dice: _Dice) -> str:
    def choose(slot: re.Match[str]) -> str:
        match slot[1]:
            case "n":
                return dice.pick(NOUNS)
            case "N":
                return dice.pick(NOUNS).capitalize()
            case "v":
                return dice.pick(VERBS)
            case "V":
                return dice.pick(VERBS).capitalize()
            case "a":
                return dice.pick(ADJECTIVES)
            case "z":
                return dice.pick(ZH)
            case "d":
                return str(2 + dice.below(18))
            case _:
                return str(20 + dice.below(180))

    return _SLOT.sub(choose, template)


def paragraph(kind: str, number: int) -> str:
    """Write the `number`-th paragraph of a kind (a key of KINDS): one to three sentences."""
    dice = _Dice(number * 2654435761 + sum(kind.encode()))
    templates = KINDS[kind]
    n_sentences = 1 if kind in ("code", "maths") else 1 + dice.below(3)
    glue = "" if kind == "chinese" else "\n" if kind == "prose" else " "
    return glue.join(_fill(templates[dice.below(len(templates))], dice) for _ in range(n_sentences))


def _tool_text(number: int) -> str:
    dice = _Dice(number)
    name = f"{dice.pick(VERBS)}_{dice.pick(NOUNS)}"
    key, other = dice.pick(NOUNS), dice.pick(NOUNS)
    schema = {
        "type": "function",
        "function": {
            "name": name,
            "description": _fill("@V the @a @n of a @n.", dice),
            "parameters": {
                "type": "object",
                "properties": {
                    key: {"type": "string", "description": _fill("The @n to @v.", dice)},
                    other: {"type": ("integer", "number", "boolean")[dice.below(3)]},
                },
                "required": [key],
            },
        },
    }
    call = (
        f"<function={name}>\n<parameter={key}>\n{dice.pick(NOUNS)}\n</parameter>\n"
        f"<parameter={other}>\n{dice.below(90)}\n</parameter>\n</function>"
    )
    answer = json.dumps({key: dice.pick(NOUNS), "result": [dice.below(9), True, None]})
    return f"{json.dumps(schema)}\n{call}\n{answer}"


def training_texts() -> list[str]:
    """Return every text the tokenizer is trained on, in a fixed order."""
    texts = [paragraph(kind, number) + "\n\n" for kind in KINDS for number in range(700)]
    texts += [_tool_text(number) for number in range(500)]
    texts += [" ".join(NOUNS), " ".join(VERBS), " ".join(ADJECTIVES), "".join(ZH)] * 3
    texts += [" ".join(word.capitalize() for word in (*NOUNS, *VERBS, *ADJECTIVES))] * 3
    turn = "system\nYou are a helpful assistant.\n user\n assistant\n"
    return texts + [turn] * 40
