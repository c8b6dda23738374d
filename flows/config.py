"""ExpansionConfig: everything a run is asked for, composed of the rooms' own models.

It is the one parameter of the `expand` flow, so each field's description, bounds and unit are what
the Prefect form shows. Secrets are never in it: see `tasks/settings.py` and the store's block.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tasks.chat.config import ModelConfig
from tasks.completions.config import GatesConfig, GenerationConfig, SamplingConfig
from tasks.environment.config import EnvironmentConfig
from tasks.prompts.config import ExtractionConfig, SourceConfig
from tasks.serving.config import ServingConfig
from tasks.storage.config import StoreConfig
from tasks.tokens.config import BaseDatasetConfig, MergeConfig, TokensConfig

# What decides the answers and the data: a rerun must ask for the same. The rest (servers, gates,
# budgets, token policy) may change between reruns and is told in each receipt.
IDENTITY_FIELDS = ("model", "sampling", "sources", "extraction", "base")


class ExpansionConfig(BaseModel):
    """One expansion: prompts from these sources, answered by this model, into this store."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        # The form in Prefect's pages names a box by it, and by a class otherwise.
        field_title_generator=lambda name, _: name.capitalize(),
    )

    name: str = Field(
        default="expansion", pattern=r"^[a-z0-9][a-z0-9-]{0,40}$", description="Name of the run."
    )
    model: ModelConfig = Field(description="The target model.")
    sampling: SamplingConfig = Field(
        default_factory=SamplingConfig, description="Sampling parameters of every request."
    )
    sources: dict[str, SourceConfig] = Field(
        min_length=1, description="Prompt sources by name; earlier ones win over duplicates."
    )
    extraction: ExtractionConfig = Field(
        default_factory=ExtractionConfig, description="Filters, sampling and chunks."
    )
    serving: ServingConfig = Field(description="The inference servers.")
    generation: GenerationConfig = Field(
        default_factory=GenerationConfig, description="Retries, budgets and deadlines."
    )
    gates: GatesConfig = Field(default_factory=GatesConfig, description="Quality gates.")
    tokens: TokensConfig = Field(
        default_factory=TokensConfig, description="How answers become training samples."
    )
    base: BaseDatasetConfig | None = Field(
        default=None, description="Dataset that the new samples are merged with; empty: none."
    )
    merge: MergeConfig = Field(default_factory=MergeConfig, description="Shards of the dataset.")
    store: StoreConfig = Field(description="Where everything lands.")
    environment: EnvironmentConfig = Field(
        default_factory=EnvironmentConfig, description="What the box must have."
    )

    @field_validator("sources")
    @classmethod
    def _names_are_printable(cls, sources: dict[str, SourceConfig]) -> dict[str, SourceConfig]:
        for name in sources:
            if not (0 < len(name) <= 100 and name.isprintable() and name == name.strip()):
                raise ValueError(f"{name!r:.60} is no name: 1 to 100 printable characters")
        return sources

    @model_validator(mode="after")
    def _answers_fit(self) -> Self:
        room = self.model.context_length - self.extraction.min_answer_tokens
        if room < 1:
            raise ValueError(
                f"extraction.min_answer_tokens ({self.extraction.min_answer_tokens}) leaves no "
                f"room for a prompt within model.context_length ({self.model.context_length})"
            )
        return self

    def asked(self) -> dict[str, Any]:
        """Give the part of the configuration that a rerun must repeat.

        Local files count by their name here and by their sha256 in `resolved`, so that a run can
        be taken up again on another machine.
        """
        asked = self.model_dump(mode="json", include=set(IDENTITY_FIELDS))
        for source in asked["sources"].values():
            source["path"] = _file_name(source["path"])
        for benchmark in asked["extraction"]["benchmarks"].values():
            benchmark["path"] = _file_name(benchmark["path"])
        if asked["base"] is not None:
            asked["base"]["path"] = _file_name(asked["base"]["path"])
        return asked


def _file_name(path: str | None) -> str | None:
    return None if path is None else path.rstrip("/").rsplit("/", 1)[-1]
