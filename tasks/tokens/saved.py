"""Rows as a folder that `datasets.load_from_disk` takes: Arrow streams and two JSON files.

Enters: canonical batches. Leaves: data-00000.arrow, ..., dataset_info.json, and state.json last: a
folder without it is not taken for a dataset. It exists because `datasets` itself would first copy
all rows into a cache of its own. The format is torch's: speculators compares ids as tensors.

Source: what `Dataset.save_to_disk` of datasets 5 writes, and speculators 0.9.0 reads.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from tasks.tokens.rows import FileSeries, read_strings

_COLUMNS = ("input_ids", "loss_mask", "seq_len")
_FEATURES: dict[str, Any] = {
    "input_ids": {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "List"},
    "loss_mask": {"feature": {"dtype": "int8", "_type": "Value"}, "_type": "List"},
    "seq_len": {"dtype": "int32", "_type": "Value"},
}
_FIELDS: list[pa.Field[Any]] = [
    pa.field("input_ids", pa.list_(pa.int32())),
    pa.field("loss_mask", pa.list_(pa.int8())),
    pa.field("seq_len", pa.int32()),
]
_SCHEMA = pa.schema(
    _FIELDS,
    metadata={"huggingface": json.dumps({"info": {"features": _FEATURES}})},
)


class SavedDatasetWriter(FileSeries[pa.ipc.RecordBatchStreamWriter]):
    """Writes rows to Arrow files of about `rows_per_file`; `files` are those written."""

    def __init__(self, folder: Path, rows_per_file: int) -> None:
        super().__init__()
        self._folder = folder
        self._rows_per_file = rows_per_file
        self._n_rows = 0
        self._digest = hashlib.sha256()
        self.files: list[Path] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        if self._writer is None:
            self.files.append(self._folder / f"data-{len(self.files):05d}.arrow")
            self._writer = pa.ipc.new_stream(str(self.files[-1]), _SCHEMA)
            self._n_rows = 0
        columns = [batch.column(name) for name in _COLUMNS]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
        self._digest.update("\n".join(read_strings(batch, "id")).encode())
        self._n_rows += batch.num_rows
        if self._n_rows >= self._rows_per_file:
            self._close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        if error is not None:
            return
        info = {"citation": "", "description": "", "features": _FEATURES, "homepage": ""}
        state: dict[str, Any] = {
            "_data_files": [{"filename": file.name} for file in self.files],
            "_fingerprint": self._digest.hexdigest()[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": "torch",
            "_output_all_columns": False,
            "_split": "train",
        }
        for name, value in (("dataset_info.json", info), ("state.json", state)):
            self.files.append(self._folder / name)
            self.files[-1].write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
