"""Shards of a dataset to a repository of the Hub, one commit a shard, so that a push can go on.

Enters: a store with shards, a repository's name. Leaves: `rNNNN/part-NNNNNN.parquet` and a card
there. What stands at a path already is left alone if it is the same and refused if it is not: a
revision on the Hub is never written over. HF_ENDPOINT is honoured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

# HTTPError is that of the Hub client's own HTTP library, which has changed before.
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
)

from tasks.errors import UserError
from tasks.storage.record import ShardReceipt
from tasks.storage.store import ArtifactStore
from tasks.tokens.card import CARD_NAME
from tasks.tokens.export import fetch_shard
from tasks.tokens.pace import Tell

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_PATHS_A_QUESTION = 100
_REFUSALS = (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError)
_FAULTS = (*_REFUSALS, OfflineModeIsEnabled, HTTPError, OSError, RuntimeError)


def push_shards(
    store: ArtifactStore,
    shards: Sequence[ShardReceipt],
    card: str,
    *,
    repo: str,
    folder: str,
    private: bool,
    hf_token: str | None,
    tell: Tell,
) -> int:
    """Push the shards that are not there yet, then the card; give how many were pushed.

    Args:
        store: Holds the shards.
        shards: Of one revision.
        card: The repository's README.md; it tells of the newest revision pushed.
        repo: `owner/name` of a dataset repository; made if it is not there.
        folder: Of the revision, in the repository.
        private: Whether a repository that is made is private.
        hf_token: May write there; None: the one that the Hub client finds by itself.
        tell: Takes a line for each shard.

    Raises:
        UserError: The Hub refuses or cannot be reached, or another file stands at a path.
        CorruptPart: A shard is not what its receipt says.
    """
    # Late: this import takes a second that other commands need not spend.
    from huggingface_hub import HfApi  # noqa: PLC0415
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    disable_progress_bars()  # a line a shard is told instead
    api = HfApi(token=hf_token)
    paths = {f"{folder}/{shard.key.rpartition('/')[2]}": shard for shard in shards}
    with _explained(repo):
        api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
        there = dict(_list_there(api, repo, list(paths)))
    for path, sha256 in there.items():
        if sha256 != paths[path].sha256:
            raise UserError(
                "another file stands at that path: a revision is never written over",
                where=f"{repo}: {path}",
                remedy="Name another repository.",
            )
    missing = [path for path in paths if path not in there]
    for number, path in enumerate(missing, start=1):
        tell(f"pushing {path} ({number} of {len(missing)})")
        _push_one(api, store, paths[path], repo, path)
    with _explained(repo):
        api.upload_file(
            path_or_fileobj=card.encode(),
            path_in_repo=CARD_NAME,
            repo_id=repo,
            repo_type="dataset",
            commit_message=f"{folder}: card",
        )
    return len(missing)


def _push_one(api: HfApi, store: ArtifactStore, shard: ShardReceipt, repo: str, path: str) -> None:
    with TemporaryDirectory(prefix="draftmill-push-") as scratch:
        local = Path(scratch) / "shard.parquet"
        fetch_shard(store, shard, local)
        with _explained(repo):
            api.upload_file(
                path_or_fileobj=local,
                path_in_repo=path,
                repo_id=repo,
                repo_type="dataset",
                commit_message=f"{path}: {shard.n_rows} rows",
            )


def _list_there(api: HfApi, repo: str, paths: list[str]) -> Iterator[tuple[str, str | None]]:
    """List which of the paths exist, each with the sha256 of its content where the Hub tells it."""
    for start in range(0, len(paths), _PATHS_A_QUESTION):
        asked = paths[start : start + _PATHS_A_QUESTION]
        for info in api.get_paths_info(repo, asked, repo_type="dataset"):
            lfs = getattr(info, "lfs", None)
            yield info.path, None if lfs is None else lfs.sha256


@contextmanager
def _explained(repo: str) -> Iterator[None]:
    try:
        yield
    except _FAULTS as fault:
        # An upload's own fault comes wrapped.
        error = fault.__cause__ if type(fault) is RuntimeError and fault.__cause__ else fault
        raise _explain(error, repo) from fault


def _explain(error: BaseException, repo: str) -> UserError:
    if isinstance(error, _REFUSALS):
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        return UserError(
            f"the Hub refuses the repository ({first_line})",
            where=repo,
            remedy="Check its name (owner/name), and set DRAFTMILL_HF_TOKEN to a token that may "
            "write there; what was pushed stays, and the same command goes on.",
        )
    return UserError(
        f"the Hub cannot be reached ({type(error).__name__})",
        where=repo,
        remedy="Check the network, HF_ENDPOINT and HF_HUB_OFFLINE; what was pushed stays, and the "
        "same command goes on.",
    )
