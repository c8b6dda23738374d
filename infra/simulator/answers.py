"""What the simulated model answers.

Enters: prompt ids, a seed and a limit of tokens. Leaves: an Answer (ids and the text that they
decode to). The same ids and seed give the same answer on every server. It exists in blocks:
paragraphs are tokenized once, and since each begins and ends where the pre-tokenizer splits
anyway, joining them joins their ids; an answer costs a few list operations and no tokenizer call.
"""

from __future__ import annotations

import json
import math
from array import array
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

from infra.simulator.corpus import ADJECTIVES, NOUNS, ZH, paragraph
from infra.simulator.faults import Faults
from infra.simulator.tokenizer import ChatTokenizer

N_PARAGRAPHS = 160
THINKING_SHARE = 0.6
FinishReason = Literal["stop", "length", "abort"]


def hash_prompt(prompt_ids: list[int]) -> str:
    """Name a prompt: 16 hex digits of blake2b over its ids as little-endian int32."""
    return blake2b(array("i", prompt_ids).tobytes(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of an answer and its tokens."""

    ids: list[int]
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A generation: ids [n_tokens], the text without the matched stop, and why it ended."""

    ids: list[int]
    text: str
    finish_reason: FinishReason
    matched: int | str | None = None


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """What the request says about where an answer ends."""

    max_tokens: int
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True


class _Draws:
    """Numbers fixed by the prompt: a hash of the prompt's name, the seed and a label."""

    def __init__(self, prompt_hash: str, seed: int, sample: int) -> None:
        self._state = int.from_bytes(
            blake2b(f"{prompt_hash}/{seed}/{sample}".encode(), digest_size=16).digest(), "little"
        )

    def below(self, limit: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & ((1 << 128) - 1)
        return (self._state >> 80) % limit

    def unit(self) -> float:
        return (self.below(1 << 32) + 0.5) / (1 << 32)


class Writer:
    """Writes answers for one tokenizer, one seed and one distribution of lengths."""

    def __init__(
        self, tokenizer: ChatTokenizer, *, seed: int, mean_tokens: float, sigma: float
    ) -> None:
        """Set the lognormal distribution of answer lengths by its mean (in tokens) and sigma."""
        self._tokenizer = tokenizer
        self._seed = seed
        self._mean = mean_tokens
        self._sigma = sigma
        self._cap = 8 * mean_tokens
        self._newline = Block(tokenizer.encode("\n"), "\n")
        self._blank_line = Block(tokenizer.encode("\n\n"), "\n\n")
        self._think_end = Block([tokenizer.think_end], "</think>")
        self._chinese_ids = {i for word in ZH for i in tokenizer.encode(word) if i > 255}
        self._code_ids = {i for text in ("```", "python", "def", "SELECT") for i in tokenizer.encode(text)}
        self._maths_ids = {i for text in ("\\frac", "\\", "####", "$", "=") for i in tokenizer.encode(text)}
        self._block = lru_cache(maxsize=None)(self._make_block)
        self._tools = lru_cache(maxsize=256)(self._read_tools)

    def write(
        self, prompt_ids: list[int], limits: AnswerLimits, faults: Faults, sample: int = 0
    ) -> Answer:
        """Answer the `sample`-th time of one request; never more than limits.max_tokens ids."""
        prompt_hash = hash_prompt(prompt_ids)
        draws = _Draws(prompt_hash, self._seed, sample)
        fault = _Draws(prompt_hash, self._seed + 1, 0)
        endless = fault.unit() < faults.truncation_rate or limits.ignore_eos
        looping = fault.unit() < faults.loop_rate
        empty = fault.unit() < faults.empty_answer_rate
        thoughtless = fault.unit() < faults.empty_thinking_rate
        n_wanted = limits.max_tokens if endless else self._draw_length(draws)
        if looping:
            n_wanted = max(n_wanted, int(2 * self._mean))
        blocks: list[Block] = []
        if self._is_thinking(prompt_ids):
            if thoughtless:
                blocks += (self._newline, self._think_end, self._blank_line)
            else:
                self._fill(blocks, draws, ("thinking",), int(n_wanted * THINKING_SHARE), "\n")
                if empty and fault.below(2):
                    return self._finish(blocks, limits, ends=True)
                blocks += (self._think_end, self._blank_line)
        if not empty:
            call = None if endless or looping else self._call_tool(prompt_ids, draws)
            n_left = n_wanted - sum(len(block.ids) for block in blocks)
            if call is not None:
                blocks.append(call)
            else:
                kinds = self._choose_kinds(prompt_ids)
                self._fill(blocks, draws, kinds, n_left, "", looping=looping)
        return self._finish(blocks, limits, ends=not endless)

    def cut(self, answer: Answer, n_tokens: int, limits: AnswerLimits) -> Answer:
        """Keep the first `n_tokens` ids of an answer that was aborted."""
        ids = answer.ids[:n_tokens]
        text = self._tokenizer.decode(ids, skip_special_tokens=limits.skip_special_tokens)
        return Answer(ids, text, "abort")

    def _draw_length(self, draws: _Draws) -> int:
        normal = math.sqrt(-2 * math.log(draws.unit())) * math.cos(2 * math.pi * draws.unit())
        median = self._mean * math.exp(-self._sigma**2 / 2)
        return max(8, int(min(self._cap, median * math.exp(self._sigma * normal))))

    def _is_thinking(self, prompt_ids: list[int]) -> bool:
        tail = prompt_ids[-6:]
        return self._tokenizer.think in tail and self._tokenizer.think_end not in tail

    def _choose_kinds(self, prompt_ids: list[int]) -> tuple[str, ...]:
        used = set(prompt_ids)
        if len(used & self._chinese_ids) >= 4:
            return ("chinese",)
        if used & self._code_ids:
            return ("code", "prose")
        if used & self._maths_ids:
            return ("maths", "prose")
        return ("prose",)

    def _make_block(self, kind: str, number: int, ending: str) -> Block:
        text = paragraph(kind, number) + ending
        return Block(self._tokenizer.encode(text), text)

    def _fill(
        self,
        blocks: list[Block],
        draws: _Draws,
        kinds: tuple[str, ...],
        n_wanted: int,
        ending: str,
        *,
        looping: bool = False,
    ) -> None:
        """Add paragraphs until about `n_wanted` tokens; the last one takes another ending."""
        kind, number, n_added = kinds[0], draws.below(N_PARAGRAPHS), 0
        while True:
            block = self._block(kind, number, "\n\n")
            n_added += len(block.ids)
            if n_added >= n_wanted:
                blocks.append(self._block(kind, number, ending))
                return
            blocks.append(block)
            if not looping:
                kind, number = kinds[draws.below(len(kinds))], draws.below(N_PARAGRAPHS)

    def _finish(self, blocks: list[Block], limits: AnswerLimits, *, ends: bool) -> Answer:
        ids = [token for block in blocks for token in block.ids]
        text = "".join([block.text for block in blocks])
        finish: FinishReason = "length"
        matched: int | str | None = None
        if ends and len(ids) < limits.max_tokens:
            ids.append(self._tokenizer.end_of_turn)
            finish, matched = "stop", self._tokenizer.end_of_turn
        elif len(ids) > limits.max_tokens:
            ids = ids[: limits.max_tokens]
            text = self._tokenizer.decode(ids, skip_special_tokens=limits.skip_special_tokens)
        found = [(text.index(stop), stop) for stop in limits.stop if stop in text]
        if not found:
            return Answer(ids, text, finish, matched)
        position, stop = min(found)
        n_tokens = self._count_tokens_to(ids, text[:position] + stop)
        return Answer(ids[:n_tokens], text[:position], "stop", stop)

    def _count_tokens_to(self, ids: list[int], text: str) -> int:
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if self._tokenizer.decode(ids[:middle]).startswith(text):
                high = middle
            else:
                low = middle + 1
        return low

    def _call_tool(self, prompt_ids: list[int], draws: _Draws) -> Block | None:
        """Call one of the prompt's tools, seven times in eight, unless a tool has just answered."""
        special = self._tokenizer
        if special.tool_call not in prompt_ids or not draws.below(8):
            return None
        last_turn_end = len(prompt_ids) - 1 - prompt_ids[::-1].index(special.end_of_turn)
        if prompt_ids[last_turn_end - 1] == special.tool_response_end:
            return None
        tools = self._tools(tuple(prompt_ids[: prompt_ids.index(special.tool_call)]))
        if not tools:
            return None
        text = _write_call(tools[draws.below(len(tools))], draws)
        return Block(special.encode(text), text)

    def _read_tools(self, prompt_ids: tuple[int, ...]) -> list[dict[str, Any]]:
        """Find the functions in a prompt's head; none where it lists no tools as JSON lines."""
        head = self._tokenizer.decode(list(prompt_ids), skip_special_tokens=False)
        listing = head.partition("<tools>\n")[2].partition("\n</tools>")[0]
        functions = []
        for line in listing.splitlines():
            try:
                tool = json.loads(line)
            except ValueError:
                return []
            function = tool.get("function", tool) if isinstance(tool, dict) else None
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                functions.append(function)
        return functions


def _write_call(function: dict[str, Any], draws: _Draws) -> str:
    parameters = function.get("parameters")
    schema = parameters if isinstance(parameters, dict) else {}
    required = schema.get("required") or ()
    lines = [f"<tool_call>\n<function={function['name']}>"]
    for name, kind in (schema.get("properties") or {}).items():
        if name in required or draws.below(4):
            lines.append(f"<parameter={name}>\n{_write_value(kind, draws)}\n</parameter>")
    return "\n".join([*lines, "</function>\n</tool_call>"])


def _write_value(schema: Any, draws: _Draws) -> str:
    schema = schema if isinstance(schema, dict) else {}
    if options := schema.get("enum"):
        return str(options[draws.below(len(options))])
    match schema.get("type"):
        case "integer":
            return str(draws.below(100))
        case "number":
            return f"{draws.below(100)}.5"
        case "boolean":
            return ("true", "false")[draws.below(2)]
        case "array":
            return json.dumps([NOUNS[draws.below(len(NOUNS))]])
        case "object":
            return json.dumps({NOUNS[draws.below(len(NOUNS))]: draws.below(10)})
        case _:
            return f"{ADJECTIVES[draws.below(len(ADJECTIVES))]} {NOUNS[draws.below(len(NOUNS))]}"
