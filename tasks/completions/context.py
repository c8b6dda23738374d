"""What generation works with: the run's context, and the batch of conversations of one part.

A chunk's conversations are a batch, and so is a share of a retry: both become one part by the same
road.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.chat.template import ChatTemplate
from tasks.completions.config import GatesConfig, GenerationConfig
from tasks.completions.dispatch import Dispatcher
from tasks.completions.progress import OnProgress
from tasks.completions.record import Outcome
from tasks.completions.rolling import RunWatch
from tasks.prompts.record import Plan, Prompt
from tasks.storage.record import PartHeader
from tasks.storage.retry import Conversation
from tasks.storage.store import ArtifactStore


@dataclass(frozen=True, slots=True)
class GenerationContext:
    """What all chunks of a run share.

    Attributes:
        on_progress: Called at most once a second a chunk.
        watch: Judges the chunks together; None where there is no run around them.
        inspect_canary: Called with the finished local part of chunk 0 before it is published;
            raises MaskError or TokenMismatch where it must not be.
        take_energy: Tells the watt-hours used since it was last called, for the part's footer.
    """

    plan: Plan
    template: ChatTemplate
    store: ArtifactStore
    dispatcher: Dispatcher
    spool_dir: Path
    generation: GenerationConfig
    gates: GatesConfig
    on_progress: OnProgress | None = None
    watch: RunWatch | None = None
    inspect_canary: Callable[[Path], Awaitable[None]] | None = None
    take_energy: Callable[[], float | None] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Conversations whose outcomes become one part.

    Attributes:
        name: What errors call it.
        header: Of its part; `chunk_id` is also its place in the queue for slots.
        asked: Prompts by conversation, in the order of the part's rows.
        folder: Its journals.
        gates: Thresholds for its own conversations.
        failure_budget: Share of them that may have no answer.
        watch: Judges it together with the run's other batches.
        inspect: Called with the finished local part before it is published.
        fallbacks: Outcomes of an earlier part that stand where the new one has fewer answers.
    """

    name: str
    header: PartHeader
    asked: Mapping[Conversation, Prompt]
    folder: Path
    gates: GatesConfig
    failure_budget: float
    watch: RunWatch | None
    inspect: Callable[[Path], Awaitable[None]] | None
    fallbacks: Mapping[Conversation, Outcome]
