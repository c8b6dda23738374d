"""A configuration filled in, or narrowed, by what this package itself knows.

Enters: a configuration as it was written. Leaves: the same with the registry's sources, the
built-in model's files, or one source alone. It exists so that commands that start no run need no
Prefect for it.
"""

from __future__ import annotations

from importlib import resources

from rapidfuzz import process

from flows.config import ExpansionConfig
from tasks.chat.config import ModelConfig
from tasks.errors import ConfigError, ConfigIssue
from tasks.prompts.sources import complete_source
from tasks.settings import Settings

_BUILTIN = "builtin:simulator"


def complete_sources(config: ExpansionConfig) -> ExpansionConfig:
    """Lay each source over the registry's entry that it uses."""
    sources = {key: complete_source(key, source) for key, source in config.sources.items()}
    return config.model_copy(update={"sources": sources})


def check_source(config: ExpansionConfig, source: str | None, revision: str | None) -> None:
    """Hold the parameters of a run over one source against its configuration.

    Raises:
        ConfigError: The source is not configured, or a revision stands without a source.
    """
    if source is None:
        if revision is not None:
            raise _parameter_fault("revision", "a revision needs its source")
    elif source not in config.sources:
        raise _parameter_fault("source", _describe_unknown(source, list(config.sources)))


def pin(config: ExpansionConfig, source: str, revision: str | None) -> ExpansionConfig:
    """Leave one source in a configuration, at a revision; empty: at the one it names itself."""
    chosen = config.sources[source]
    if revision:
        chosen = chosen.model_copy(update={"revision": revision})
    return config.model_copy(update={"sources": {source: chosen}})


def locate_model(model: ModelConfig) -> ModelConfig:
    """Point the built-in model's tokenizer at the files that the simulator ships."""
    if model.path != _BUILTIN or model.tokenizer is not None:
        return model
    folder = resources.files("infra.simulator") / "model"
    return model.model_copy(update={"tokenizer": str(folder)})


def secret_of(settings: Settings) -> str | None:
    """Read the Hub token out of the settings."""
    return settings.hf_token.get_secret_value() if settings.hf_token else None


def _describe_unknown(source: str, known: list[str]) -> str:
    near = process.extractOne(source, known, score_cutoff=60)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"no source {source!r:.80}: {hint}the configuration has {', '.join(known)}"


def _parameter_fault(path: str, message: str) -> ConfigError:
    return ConfigError(
        "the flow's parameters cannot be used:", issues=(ConfigIssue("parameters", path, message),)
    )
