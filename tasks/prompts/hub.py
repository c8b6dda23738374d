"""Datasets of the Hub: their commits and their rows, streamed.

Enters: a dataset's name, and a commit or tag. Leaves: the commit, and rows. It exists so that a
run reads one commit to its end, and so that a gated, missing or unreachable dataset says what to
do. No code of a dataset is run: `datasets` reads data files alone. HF_ENDPOINT is honoured.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# HTTPError is that of the Hub client's own HTTP library, which has changed before.
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tasks.errors import SourceError
from tasks.prompts.files import BATCH_ROWS, list_rows
from tasks.prompts.record import ResolvedSource

_TIMEOUT_SECONDS = 30.0


def resolve_commit(dataset: str, revision: str | None, hf_token: str | None) -> str:
    """Resolve a branch or tag (None: the newest) of a Hub dataset to its commit.

    Raises:
        SourceError: Gated, missing, no such revision, or the Hub is out of reach.
    """
    # Late, here and below: these imports take seconds that a run of local files need not spend.
    from huggingface_hub import HfApi  # noqa: PLC0415

    try:
        info = HfApi().dataset_info(
            dataset, revision=revision, token=hf_token, timeout=_TIMEOUT_SECONDS
        )
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, HTTPError) as error:
        raise _explain(error, dataset, revision) from error
    if info.sha is None:
        raise SourceError(
            "the Hub names no commit of the dataset.",
            where=dataset,
            remedy="Set the source's revision to a commit.",
        )
    return info.sha


def read_dataset(source: ResolvedSource, hf_token: str | None) -> Iterator[object]:
    """Stream the rows of a Hub dataset at its resolved commit.

    Raises:
        SourceError: It cannot be read, or has no such configuration or split.
    """
    from datasets import load_dataset  # noqa: PLC0415

    # `datasets` would read such a folder instead, under the name and commit of the Hub's dataset.
    if Path(source.dataset).exists():
        raise SourceError(
            "a local folder of that name stands in the way of the Hub's dataset.",
            where=source.dataset,
            remedy="Start from another working folder, or set the source's path to a local file.",
        )
    try:
        rows = load_dataset(
            source.dataset,
            source.config,
            split=source.split,
            revision=source.revision,
            streaming=True,
            token=hf_token,
        )
        # By the batch, as a local file is read: row by row it takes three times as long.
        for table in rows.with_format("arrow").iter(batch_size=BATCH_ROWS):
            for batch in table.to_batches():
                yield from list_rows(batch)
    except (HfHubHTTPError, OfflineModeIsEnabled, HTTPError) as error:
        raise _explain(error, source.dataset, source.revision) from error
    except (ValueError, OSError, RuntimeError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise SourceError(
            f"the dataset cannot be read: {first_line}",
            where=f"{source.dataset} (config {source.config}, split {source.split})",
            remedy="Check config and split of the source against the dataset's page; a dataset "
            "that needs a loading script is not supported, as its code would be run.",
        ) from error


def _explain(error: Exception, dataset: str, revision: str | None) -> SourceError:
    if isinstance(error, GatedRepoError):
        what = "the dataset is gated, and the token has no access to it."
        remedy = (
            "Accept its conditions on the dataset's page with your account, and set "
            "DRAFTMILL_HF_TOKEN to a token of that account."
        )
    elif isinstance(error, RevisionNotFoundError):
        what = f"the dataset has no revision {revision!r}."
        remedy = "Set the source's revision to an existing commit or tag, or leave it out."
    elif isinstance(error, RepositoryNotFoundError | HFValidationError):
        what = "the Hub has no such dataset, or it is private."
        remedy = (
            "Check the source's dataset (owner/name); for a private one set DRAFTMILL_HF_TOKEN."
        )
    elif isinstance(error, OfflineModeIsEnabled):
        what = "the Hub is switched off for this process (HF_HUB_OFFLINE)."
        remedy = "Unset HF_HUB_OFFLINE, or set the source's path to a local file."
    else:
        what = f"the Hub cannot be reached or refuses ({type(error).__name__})."
        remedy = (
            "Check the network and HF_ENDPOINT and run again, or set the source's path to a "
            "local file."
        )
    return SourceError(what, where=dataset, remedy=remedy)
