"""Publishes a finished dataset to a repository of the Hub; a push that was cut off goes on."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from rich.text import Text

from flows.dataset.export import read_finished
from flows.dataset.inspect import open_prefix
from flows.process.speak import ERR
from tasks.settings import read_settings
from tasks.tokens.card import write_card
from tasks.tokens.hub import push_shards


def push_dataset(prefix: str, repo: str, *, private: bool) -> dict[str, Any]:
    """Push the shards of the newest revision, with the dataset card.

    A base that the manifest only refers to stays where it is: its rows are not ours to publish.

    Args:
        prefix: A uri, a folder, or a configuration that names the store.
        repo: `owner/name` of the dataset repository; made if it is not there.
        private: Whether a repository that is made is private.

    Raises:
        UserError: Nothing is finished there, or the Hub refuses.
    """
    token = read_settings().hf_token
    with closing(open_prefix(prefix)) as store:
        manifest = read_finished(store)
        folder = f"r{manifest.revision:04d}"
        n_pushed = push_shards(
            store,
            manifest.shards,
            write_card(manifest, store.uri, "parquet", folder),
            repo=repo,
            folder=folder,
            private=private,
            hf_token=token.get_secret_value() if token else None,
            tell=lambda line: ERR.print(line, style="dim", markup=False),
        )
    n_shards = len(manifest.shards)
    return {"repo": repo, "folder": folder, "n_shards": n_shards, "n_pushed": n_pushed}


def describe_push(found: dict[str, Any]) -> Text:
    """Say what is there now."""
    return Text(
        f"{found['n_shards']:,} shards in {found['repo']}, folder {found['folder']}: "
        f"{found['n_pushed']:,} pushed now, the others were there"
    )
