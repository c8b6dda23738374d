"""A run up to its plan, in a scratch folder: nothing is written to the store.

Enters: an ExpansionConfig. Leaves: the plan, and what it was made of. It exists so that `plan` and
`mix` show what a run would do because they do it, with the same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from flows.config import ExpansionConfig
from flows.configuration.complete import complete_sources, locate_model, secret_of
from flows.dataset.inspect import read_credentials
from flows.process.speak import ERR
from flows.stages.increments import find_past
from flows.stages.remote import fetch_sources
from flows.stages.survey import survey
from tasks.chat.template import ChatTemplate
from tasks.completions.garbage import collect_rarely
from tasks.prompts.chunk import make_plan
from tasks.prompts.extract import extract_prompts
from tasks.prompts.record import Plan
from tasks.prompts.selection import Wishes
from tasks.prompts.sources import resolve_source
from tasks.settings import read_settings
from tasks.storage.config import StoreConfig
from tasks.storage.layout import request_key
from tasks.storage.request import hash_json
from tasks.storage.scratch import open_scratch
from tasks.storage.store import ArtifactStore, open_store


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a run would begin with.

    Attributes:
        config: Completed, with local sources.
        plan: The plan.
        scratch: The store that holds the extracted prompts and the chunks.
        is_begun: Whether a run stands at the configuration's own store already.
        base_rows: Rows of the base dataset by domain.
    """

    config: ExpansionConfig
    plan: Plan
    scratch: ArtifactStore
    is_begun: bool
    base_rows: dict[str, int]


@contextmanager
def rehearse(config: ExpansionConfig) -> Iterator[Rehearsal]:
    """Extract and plan in a folder that is gone at the end of the with block.

    Raises:
        UserError: A source, the model or the store cannot be had.
    """
    settings = read_settings()
    config, model, token = complete_sources(config), locate_model(config.model), secret_of(settings)
    credentials = read_credentials(config.store, settings)
    with closing(open_store(config.store, credentials)) as store:
        is_begun = store.head(request_key()) is not None
    asked_sha = hash_json(config.asked())
    config = fetch_sources(config, credentials, settings.home)
    template = ChatTemplate.load(model, token)
    extraction = config.extraction
    past = find_past(
        config.store, credentials, root=None, earlier=extraction.earlier, wants_base=False
    )
    found = survey(past, config.store, credentials, config.base, template, thinking=model.thinking)
    with (
        open_scratch(settings.spool_dir / "extract") as folder,
        closing(open_store(StoreConfig(uri=(folder / "run").as_uri()))) as scratch,
        collect_rarely(),
    ):
        receipts = []
        for key, source in config.sources.items():
            ERR.print(f"reading {key}", style="dim", markup=False)
            receipts.append(
                extract_prompts(
                    scratch,
                    resolve_source(key, source, token),
                    source,
                    template=template,
                    model=model,
                    extraction=extraction,
                    hf_token=token,
                    spool_dir=folder,
                    known=found.known,
                )
            )
        plan = make_plan(
            scratch,
            request_sha=asked_sha,
            receipts=receipts,
            model=model,
            template=template,
            extraction=extraction,
            sampling=config.sampling.model_dump(exclude={"max_tokens", "n_samples"}),
            n_samples=config.sampling.n_samples,
            max_tokens=config.sampling.max_tokens,
            spool_dir=folder,
            wishes=Wishes(
                near={key: source.near_duplicates for key, source in config.sources.items()},
                mix=extraction.mix,
                base_rows=found.base_rows,
                base_tokens=found.base_tokens,
            ),
        )
        yield Rehearsal(config, plan, scratch, is_begun, found.base_rows)
