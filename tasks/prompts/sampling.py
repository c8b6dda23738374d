"""A source's conversations in the run's order, until its quota is full.

Enters: Candidates. Leaves: records with their rendered first turn, and in the Ledger what near-
duplicates, length and quota took away. The order is a hash, so that a source that grows keeps what
was sampled of it, but for what the new rows push past the quota.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain

import orjson

from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tasks.prompts.candidates import Candidates
from tasks.prompts.config import ExtractionConfig, SourceConfig
from tasks.prompts.domains import choose_domain
from tasks.prompts.filters import render_first_turns
from tasks.prompts.known import KnownPrompts, hash_ids
from tasks.prompts.ledger import Ledger
from tasks.prompts.near import NearIndex, join_user_turns
from tasks.prompts.prompt_file import Columns
from tasks.prompts.record import Refusal, ResolvedSource

_RENDERED_AT_ONCE = 256
# Near-duplicates are looked for in blocks: as many as the quota still wants, but not single ones.
_FEWEST_COMPARED = 1_000
_NEAR = Refusal("near_duplicate", "an earlier prompt is nearly the same")
_IN_BASE = Refusal("in_base", "the base dataset has an answer to the rendered prompt")


class Sampler:
    """Takes conversations in order; counts what it takes."""

    def __init__(
        self,
        source: ResolvedSource,
        config: SourceConfig,
        candidates: Candidates,
        ledger: Ledger,
        known: KnownPrompts,
    ) -> None:
        self._place = {
            "source_key": source.key,
            "dataset": source.dataset,
            "config": source.config,
            "split": source.split,
            "revision": source.revision,
        }
        self._config = config
        self._candidates = candidates
        self._ledger = ledger
        self._known = known
        self._quota = len(candidates) if config.quota is None else config.quota
        self._order = candidates.list_order()
        self._n_compared = 0
        self._ready: deque[int] = deque()
        self._threshold = config.near_duplicates
        self._near = NearIndex(self._threshold or 1.0, self._read_text)
        self.n_prompts = 0

    def render(
        self, template: ChatTemplate, model: ModelConfig, extraction: ExtractionConfig
    ) -> Iterator[Columns]:
        """Render until the quota is full; gives whole records."""
        limit = model.context_length - extraction.min_answer_tokens
        while places := self._take(min(_RENDERED_AT_ONCE, self._quota - self.n_prompts)):
            batch = list(self._candidates.read(places))
            rendered = render_first_turns(
                [(one[0], one[1]) for one in batch],
                template,
                thinking=model.thinking,
                max_prompt_tokens=limit,
            )
            for place, one, ids in zip(places, batch, rendered, strict=True):
                messages, tools, labels, row, own_id, reference = one
                prompt_id = self._candidates.prompt_id(place)
                if isinstance(ids, Refusal):
                    self._reject(ids, place, row, own_id)
                    continue
                if self._known.rendered and hash_ids(ids) in self._known.rendered:
                    self._reject(_IN_BASE, place, row, own_id)
                    continue
                self.n_prompts += 1
                domain, rule = choose_domain(messages, tools, labels, self._config)
                self._ledger.see(prompt_id, "kept")
                yield {
                    **self._place,
                    "id": prompt_id.hex(),
                    "messages": orjson.dumps(messages).decode(),
                    "tools": tools,
                    "domain": domain,
                    "domain_rule": rule,
                    "row": row,
                    "prompt_token_ids": ids,
                    "reference": reference,
                }

    def leave_rest(self) -> None:
        """Count and write what the quota left out."""
        for place in chain(self._ready, self._order[self._n_compared :]):
            self._ledger.leave(self._candidates.prompt_id(place))

    def _take(self, n_wanted: int) -> list[int]:
        while len(self._ready) < n_wanted and self._n_compared < len(self._order):
            self._compare_next(max(self._quota - self.n_prompts, _FEWEST_COMPARED))
        return [self._ready.popleft() for _ in range(min(n_wanted, len(self._ready)))]

    def _compare_next(self, n_wanted: int) -> None:
        block = self._order[self._n_compared : self._n_compared + n_wanted].tolist()
        self._n_compared += len(block)
        if self._threshold is None:
            self._ready.extend(block)
            return
        texts = (join_user_turns(one[0]) for one in self._candidates.read(block))
        for place, survives in zip(block, self._near.extend(texts, self._threshold), strict=True):
            if survives:
                self._ready.append(place)
            else:
                _, _, _, row, own_id, _ = next(self._candidates.read([place]))
                self._reject(_NEAR, place, row, own_id)

    def _read_text(self, index: int) -> str:
        return join_user_turns(next(self._candidates.read([int(self._order[index])]))[0])

    def _reject(self, refusal: Refusal, place: int, row: int, own_id: str | None) -> None:
        prompt_id = self._candidates.prompt_id(place).hex()
        self._ledger.reject(refusal, row, own_id=own_id, prompt_id=prompt_id)
