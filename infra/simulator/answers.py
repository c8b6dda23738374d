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

from infra.simulator.corpus import ZH, paragraph
from infra.simulator.draws import Draws
from infra.simulator.faults import Faults
from infra.simulator.tokenizer import ChatTokenizer
from infra.simulator.tool_calls import write_tool_call

# A prime, so that any stride visits every paragraph before it repeats one.
N_PARAGRAPHS = 157
THINKING_SHARE = 0.6
N_REPEATS = 20
FinishReason = Literal["stop", "length", "abort"]


def hash_prompt(prompt_ids: list[int]) -> str:
    """Name a prompt: 16 hex digits of blake2b over its ids as little-endian int32."""
    return blake2b(array("i", prompt_ids).tobytes(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of an answer and its tokens, also as the inside of a JSON list."""

    ids: list[int]
    text: str
    ids_json: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A generation: ids [n_tokens], the text without the matched stop, and why it ended.

    `ids_json` is the ids once more, joined out of what was prepared; None where they were cut.
    """

    ids: list[int]
    text: str
    finish_reason: FinishReason
    matched: int | str | None = None
    ids_json: bytes | None = None


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """What the request says about where an answer ends."""

    max_tokens: int
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True


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
        self._newline = self._encode_block("\n")
        self._blank_line = self._encode_block("\n\n")
        self._think_end = self._encode_block("</think>")
        self._chinese_ids = {i for word in ZH for i in tokenizer.encode(word) if i > 255}
        self._code_ids = {i for word in ("```", "python", "SELECT") for i in tokenizer.encode(word)}
        self._maths_ids = {i for word in ("\\frac", "####", "$") for i in tokenizer.encode(word)}
        self._block = lru_cache(maxsize=None)(self._make_block)
        self._tools = lru_cache(maxsize=256)(self._read_tools)

    def write(
        self, prompt_ids: list[int], limits: AnswerLimits, faults: Faults, sample: int = 0
    ) -> Answer:
        """Answer the `sample`-th time of one request; never more than limits.max_tokens ids."""
        prompt_hash = hash_prompt(prompt_ids)
        draws = Draws(prompt_hash, self._seed, sample)
        fault = Draws(prompt_hash, self._seed + 1, 0)
        endless = fault.unit() < faults.truncation_rate or limits.ignore_eos
        looping = fault.unit() < faults.loop_rate
        empty = fault.unit() < faults.empty_answer_rate and not endless
        thoughtless = fault.unit() < faults.empty_thinking_rate
        n_wanted = limits.max_tokens if endless else self._draw_length(draws)
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
        return Answer(ids, self._decode(ids, limits), "abort")

    def _draw_length(self, draws: Draws) -> int:
        normal = math.sqrt(-2 * math.log(draws.unit())) * math.cos(2 * math.pi * draws.unit())
        median = self._mean * math.exp(-(self._sigma**2) / 2)
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
        return self._encode_block(paragraph(kind, number) + ending)

    def _encode_block(self, text: str) -> Block:
        ids = self._tokenizer.encode(text)
        return Block(ids, text, ",".join(map(str, ids)).encode())

    def _fill(
        self,
        blocks: list[Block],
        draws: Draws,
        kinds: tuple[str, ...],
        n_wanted: int,
        ending: str,
        *,
        looping: bool = False,
    ) -> None:
        """Add paragraphs until about `n_wanted` tokens; the last one takes another ending."""
        number, step = (
            draws.below(N_PARAGRAPHS),
            0 if looping else 1 + draws.below(N_PARAGRAPHS - 1),
        )
        n_kinds, n_written = len(kinds), 0
        if looping:
            n_wanted = max(n_wanted, N_REPEATS * len(self._block(kinds[0], number, "\n\n").ids))
        while True:
            kind = kinds[0] if looping else kinds[n_written % n_kinds]
            block = self._block(kind, number, "\n\n")
            n_wanted -= len(block.ids)
            if n_wanted <= 0:
                blocks.append(self._block(kind, number, ending))
                return
            blocks.append(block)
            n_written += 1
            number = (number + step) % N_PARAGRAPHS

    def _finish(self, blocks: list[Block], limits: AnswerLimits, *, ends: bool) -> Answer:
        ids: list[int] = []
        for block in blocks:
            ids += block.ids
        if len(ids) > limits.max_tokens:
            answer = self._cut_blocks(blocks, ids, limits)
        else:
            text = "".join([block.text for block in blocks])
            pieces = [block.ids_json for block in blocks]
            if ends and len(ids) < limits.max_tokens:
                stop_id = self._tokenizer.end_of_turn
                ids.append(stop_id)
                pieces.append(b"%d" % stop_id)
                answer = Answer(ids, text, "stop", stop_id, b"[" + b",".join(pieces) + b"]")
            else:
                answer = Answer(ids, text, "length", None, b"[" + b",".join(pieces) + b"]")
        return self._stop_at(answer, limits.stop) if limits.stop else answer

    def _cut_blocks(self, blocks: list[Block], ids: list[int], limits: AnswerLimits) -> Answer:
        texts: list[str] = []
        n_left = limits.max_tokens
        for block in blocks:
            if len(block.ids) > n_left:
                texts.append(self._decode(block.ids[:n_left], limits))
                break
            texts.append(block.text)
            n_left -= len(block.ids)
        return Answer(ids[: limits.max_tokens], "".join(texts), "length")

    def _stop_at(self, answer: Answer, stops: tuple[str, ...]) -> Answer:
        found = [(answer.text.index(stop), stop) for stop in stops if stop in answer.text]
        if not found:
            return answer
        position, stop = min(found)
        n_tokens = self._count_tokens_to(answer.ids, answer.text[:position] + stop)
        return Answer(answer.ids[:n_tokens], answer.text[:position], "stop", stop)

    def _decode(self, ids: list[int], limits: AnswerLimits) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=limits.skip_special_tokens)

    def _count_tokens_to(self, ids: list[int], text: str) -> int:
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if self._tokenizer.decode(ids[:middle]).startswith(text):
                high = middle
            else:
                low = middle + 1
        return low

    def _call_tool(self, prompt_ids: list[int], draws: Draws) -> Block | None:
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
        return self._encode_block(write_tool_call(tools[draws.below(len(tools))], draws))

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
