"""Reads exports with the trainers' own code; run by the Python of their environment.

Enters: a folder of specforge JSON lines, one of speculators' saved dataset, one with tokenizer and
template. Leaves: one JSON object on standard output: what each loader gives for training.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MAX_LENGTH = 4096


def read_specforge(folder: Path) -> list[dict[str, Any]]:
    """Read as SpecForge's online training does: file by file, with DFlash's own filter."""
    from specforge.data.loss_mask import has_consecutive_supervised_tokens
    from specforge.data.prompt_builder import prepare_prompt_tasks

    tasks: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.jsonl")):
        tasks += prepare_prompt_tasks(
            path,
            None,
            chat_template=None,
            max_length=MAX_LENGTH,
            is_preformatted=False,
            train_only_last_turn=False,
            cache_dir=None,
            cache_key=None,
            num_proc=1,
            min_loss_tokens=2,
            loss_mask_filter=has_consecutive_supervised_tokens,
        )
    return [task["payload"] for task in tasks]


def read_offline(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take rows through SpecForge's offline step for DFlash, with hidden states of zeros."""
    import torch
    from specforge.data.preprocessing import process_offline_dflash_sample

    made = []
    for row in rows:
        raw = {name: torch.tensor(row[name]) for name in ("input_ids", "loss_mask")}
        raw["hidden_states"] = torch.zeros(len(row["input_ids"]), 8)
        sample = process_offline_dflash_sample(raw, MAX_LENGTH)
        made.append({name: sample[name][0].tolist() for name in ("input_ids", "loss_mask")})
    return made


def prepare_speculators(folder: Path, model: Path) -> list[dict[str, Any]]:
    """Read the JSON lines as speculators' prepare-data does."""
    from speculators.data_generation.preprocessing import load_and_preprocess_dataset

    dataset, _ = load_and_preprocess_dataset(
        str(model), [str(folder)], seq_length=MAX_LENGTH, build_dataset_num_proc=1
    )
    return [
        {name: row[name].tolist() for name in ("input_ids", "loss_mask", "seq_len")}
        for row in dataset
    ]


def train_speculators(folder: Path) -> list[dict[str, Any]]:
    """Read the saved dataset as speculators' training does, with hidden states of zeros."""
    import torch
    from datasets import load_from_disk
    from safetensors.torch import save_file
    from speculators.train.data import ArrowDataset

    hidden = folder / "hidden_states"
    hidden.mkdir()
    for index, row in enumerate(load_from_disk(folder)):
        states = torch.zeros(len(row["input_ids"]), 4, 8)
        save_file(
            {"hidden_states": states, "token_ids": row["input_ids"]},
            hidden / f"hs_{index}.safetensors",
        )
    dataset = ArrowDataset(MAX_LENGTH, folder, on_missing="raise")
    items = [dataset[index] for index in range(len(dataset))]
    return [
        {
            "input_ids": item["input_ids"].tolist(),
            "loss_mask": item["loss_mask"].tolist(),
            "seq_len": length,
        }
        for item, length in zip(items, dataset.approx_lengths, strict=True)
    ]


def main() -> None:
    """Read all, and print it."""
    specforge, saved, model = (Path(argument) for argument in sys.argv[1:4])
    rows = read_specforge(specforge)
    read = {
        "specforge": rows,
        "specforge offline": read_offline(rows),
        "speculators prepare-data": prepare_speculators(specforge, model),
        "speculators training": train_speculators(saved),
    }
    sys.stdout.write(f"\n{json.dumps(read)}\n")


if __name__ == "__main__":
    main()
