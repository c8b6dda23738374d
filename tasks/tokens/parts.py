"""Tokens parts in the store: fetched to local files, and known by what their footer says.

Enters: a key. Leaves: a local Parquet file with its hash, or the SamplesReceipt that the file
carries in its own metadata. It exists so that a part made before is taken as it is: its bytes need
not be made again to be believed.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.errors import CorruptPart
from tasks.storage.store import ArtifactStore
from tasks.tokens.record import SamplesReceipt
from tasks.tokens.rows import SCHEMA, RowWriter, iter_batches

_RECEIPT = "draftmill.samples"
_RECEIPT_SHA256 = "draftmill.samples.sha256"
_UNKNOWN_YET = {"sha256": "", "n_bytes": 0}


def write_receipt(writer: RowWriter, receipt: SamplesReceipt) -> None:
    """Put a receipt into the file's metadata; its own hash and size cannot be in it."""
    told = receipt.model_copy(update=_UNKNOWN_YET).model_dump_json()
    # Checksums guard the pages alone; the receipt lies in the footer.
    writer.set_metadata({_RECEIPT: told, _RECEIPT_SHA256: _hash(told.encode())})


def fetch_object(store: ArtifactStore, key: str, path: Path) -> tuple[str, int]:
    """Copy an object to a new local file; give its sha256 and size.

    Raises:
        FileNotFoundError: There is no such object.
    """
    with store.open(key) as source, path.open("xb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size


def find_receipt(store: ArtifactStore, key: str, folder: Path) -> SamplesReceipt | None:
    """Read the receipt of the tokens part at a key; None if there is none yet.

    Its rows are read as well: a receipt within the file says nothing of bytes damaged since.

    Raises:
        CorruptPart: What stands there is no sound tokens part.
    """
    path = folder / "there.parquet"
    try:
        sha256, n_bytes = fetch_object(store, key, path)
    except FileNotFoundError:
        path.unlink(missing_ok=True)
        return None
    try:
        with pq.ParquetFile(path) as file:
            metadata, schema = file.metadata.metadata or {}, file.schema_arrow
            n_rows = file.metadata.num_rows
        told = metadata.get(_RECEIPT.encode(), b"")
        if metadata.get(_RECEIPT_SHA256.encode()) != _hash(told).encode():
            raise _corrupt(store, key, "its receipt is not what it was")
        receipt = SamplesReceipt.model_validate_json(told)
        n_tokens = sum(pc.sum(batch.column("seq_len")).as_py() or 0 for batch in iter_batches(path))
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        # ValueError: no receipt, or names that are no text; KeyError: a column has another name.
        raise _corrupt(store, key, "it cannot be read") from error
    finally:
        path.unlink()
    held = (receipt.key, receipt.n_samples, receipt.n_tokens)
    if held != (key, n_rows, n_tokens) or not schema.equals(SCHEMA):
        raise _corrupt(store, key, "its rows are not what it says of them")
    return receipt.model_copy(update={"sha256": sha256, "n_bytes": n_bytes})


def fetch_samples(store: ArtifactStore, receipt: SamplesReceipt, path: Path) -> None:
    """Copy a tokens part to a new local file and hold it against its receipt.

    Raises:
        CorruptPart: It is missing, or its bytes are others.
    """
    try:
        sha256, _ = fetch_object(store, receipt.key, path)
    except FileNotFoundError as error:
        raise _corrupt(store, receipt.key, "it is missing") from error
    if sha256 != receipt.sha256:
        raise _corrupt(store, receipt.key, "its bytes are not those of its receipt")


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _corrupt(store: ArtifactStore, key: str, what: str) -> CorruptPart:
    return CorruptPart(
        f"the tokens part is damaged: {what}.",
        where=f"{store.uri}/{key}",
        remedy="Run the same request again: it is made anew from its data part, beside this one.",
    )
