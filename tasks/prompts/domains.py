"""Which domain of the mix a conversation belongs to; pure.

Enters: a conversation, its row's labels and its source's settings. Leaves: a domain, and the rule
that chose it. The cascade: the row's own label by the source's table; the source's own domain;
rules over the text and tools; else `general`. The rules are versioned by `DOMAIN_RULES_VERSION`: a
report shows which of them fired.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import re2
from ruamel.yaml import YAML

from tasks.prompts.config import SourceConfig
from tasks.prompts.record import Message
from tasks.prompts.shingles import split_words

DOMAIN_RULES_VERSION = 1
_WORDS = Path(__file__).with_name("domain_words.yaml")

# One strong sign decides, and of the words it takes two. Patterns are RE2's: rows are untrusted.
_CODE_SIGNS = re2.compile(
    r"(?m)```(?:python|js|javascript|typescript|ts|java|c|cpp|c\+\+|csharp|go|rust|ruby|php|sql|bash"
    r"|sh|html|css|json|yaml|kotlin|swift|r)?\s*$"
    r"|^\s*(?:from [\w.]+ import |import [\w.]+;?\s*$|#include\s*<|using namespace |package [\w.]+;"
    r"|public (?:static )?class |def \w+\(.*\).*:|function \w+\(.*\)\s*\{|fn \w+\()"
    r"|SELECT\b.+\bFROM\b"
)
_MATH_SIGNS = re2.compile(
    r"\\(?:frac|sqrt|sum|int|mathbb|lim|cdot|begin\{(?:equation|align|[bp]?matrix|cases))"
    r"|\$[^$\n]*[=^_\\+][^$\n]*\$"
    r"|\b[a-z](?:\^?\d)?\s*[-+*/]\s*\d+\s*[a-z]?\s*=\s*-?\d|\b\d+[a-z]\s*[-+=]\s*\d"
)
_MOST_CHARS = 4_000


def choose_domain(
    messages: Sequence[Message], tools: str | None, labels: Sequence[str], config: SourceConfig
) -> tuple[str, str]:
    """Give a conversation's domain and the rule that chose it.

    The rule is `label`, `source`, `rules-1:...` or `default`.
    """
    for label in labels if config.domain_labels else ():
        domain = config.domain_labels.get(label)
        if domain is not None:
            return domain, "label"
    if config.domain is not None:
        return config.domain, "source"
    return judge_text(messages, tools)


def judge_text(messages: Sequence[Message], tools: str | None) -> tuple[str, str]:
    """Tell the domain by the tools and the users' turns alone."""
    if tools is not None:
        return "tools", _name("tools")
    text = "\n".join(turn["content"] for turn in messages if turn["role"] == "user")
    text = text[:_MOST_CHARS]
    if _CODE_SIGNS.search(text):
        return "code", _name("code-signs")
    if _MATH_SIGNS.search(text):
        return "math", _name("math-signs")
    words = set(split_words(text))
    known = _load_words()
    n_code, n_math, n_science = (len(words & known[name]) for name in ("code", "math", "science"))
    if n_code >= 2 and n_code >= max(n_math, n_science):
        return "code", _name("code-words")
    if n_science >= 2 and n_science >= n_math:
        return "science", _name("science-words")
    if n_math >= 3 or (n_math == 2 and any(map(str.isdigit, text))):
        return "math", _name("math-words")
    return "general", "default"


@lru_cache(maxsize=1)
def _load_words() -> dict[str, frozenset[str]]:
    read = YAML(typ="safe", pure=True).load(_WORDS.read_text(encoding="utf-8"))
    return {domain: frozenset(words.split()) for domain, words in read.items()}


def _name(rule: str) -> str:
    return f"rules-{DOMAIN_RULES_VERSION}:{rule}"
