"""Reads the model's files, in a folder or in the Hub's cache: there, whole, how large, which kind.

Enters: a folder or a repository's name. Leaves: ModelFacts. A weights file is whole when its size
is what its own header says; nothing is loaded and nothing is fetched.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.environment.box_facts import ModelFacts
from tasks.environment.compat import MTP_CONFIG_KEYS
from tasks.environment.host_facts import read_disk

_GIB = 2**30
_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_MOST_HEADER_BYTES = 100_000_000


def read_model(path: str, revision: str | None) -> ModelFacts:
    """Read a model in a folder, or what the Hub's cache holds of it."""
    folder = Path(path).expanduser()
    is_local = folder.is_dir() or path.startswith(("/", "./", "../", "~"))
    cache = hub_cache()
    if not is_local:
        folder = _snapshot(cache, path, revision)
    disk = None if is_local else read_disk(cache)
    try:
        return _read_folder(folder, path, is_local).model_copy(update={"disk": disk})
    except OSError as error:
        return ModelFacts(path=path, is_local=is_local, error=str(error), disk=disk)
    # JSON of another form than a model's: a list, or an index without its map.
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        told = f"config.json or {_INDEX} is malformed ({type(error).__name__}: {error})"
        return ModelFacts(path=path, is_local=is_local, error=told, disk=disk)


def hub_cache() -> Path:
    """Give the folder that the Hub's client downloads into."""
    named = os.environ.get("HF_HUB_CACHE")
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(named or f"{home}/hub").expanduser()


def _snapshot(cache: Path, repository: str, revision: str | None) -> Path:
    folder = cache / f"models--{repository.replace('/', '--')}"
    name = revision or "main"
    with suppress(OSError):
        name = (folder / "refs" / name).read_text().strip()
    return folder / "snapshots" / name


def _read_folder(folder: Path, path: str, is_local: bool) -> ModelFacts:
    config: dict[str, Any] = {}
    missing = []
    if (folder / "config.json").is_file():
        config = json.loads((folder / "config.json").read_bytes())
    else:
        missing.append("config.json")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        missing.append(_TOKENIZERS[0])
    shards, names = _list_weights(folder)
    if not shards:
        missing.append("*.safetensors")
    n_bytes = 0
    for shard in shards:
        size = _read_whole_size(folder / shard)
        if size is None:
            missing.append(shard)
        else:
            n_bytes += size
    text = config.get("text_config") or {}
    counted = [each.get(key) for each in (config, text) for key in MTP_CONFIG_KEYS]
    has_mtp = any(counted) or any(name.startswith("mtp.") for name in names)
    return ModelFacts(
        path=path,
        is_local=is_local,
        missing=tuple(missing),
        # Weights of which a part is missing would tell too little.
        weights_gib=n_bytes / _GIB if n_bytes and not missing else None,
        architectures=tuple(config.get("architectures") or ()),
        has_mtp=has_mtp if config else None,
    )


def _list_weights(folder: Path) -> tuple[list[str], list[str]]:
    """List the weights' files, and the tensors' names where an index tells them."""
    if (folder / _INDEX).is_file():
        weight_map = json.loads((folder / _INDEX).read_bytes())["weight_map"]
        return sorted(set(weight_map.values())), list(weight_map)
    return sorted(path.name for path in folder.glob("*.safetensors")), []


def _read_whole_size(path: Path) -> int | None:
    """Give a weights file's size; None: it is absent, cut short, or no safetensors file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            n_header = int.from_bytes(stream.read(8), "little")
            if n_header > _MOST_HEADER_BYTES:
                return None
            header = json.loads(stream.read(n_header))
    except (OSError, ValueError):
        return None
    ends = [t["data_offsets"][1] for key, t in header.items() if key != "__metadata__"]
    return size if size == 8 + n_header + max(ends, default=0) else None
