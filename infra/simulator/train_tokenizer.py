"""Rebuild the shipped tokenizer and its configuration: `python -m infra.simulator.train_tokenizer`.

Enters: the invented corpus. Leaves: tokenizer.json, tokenizer_config.json and config.json, byte for
byte the files in model/ (a test compares them). It exists so that the model folder has a known
origin; the chat template beside them is written by hand.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from infra.simulator.corpus import training_texts

VOCAB_SIZE = 4096
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
# Source: the pre-tokenisation pattern of the Qwen2 to Qwen3 tokenizers.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTEXT_LENGTH = 32768
MODEL_DIR = Path(__file__).parent / "model"


def train_tokenizer() -> Tokenizer:
    """Train the byte-level BPE: VOCAB_SIZE ids, the added tokens last, as in Qwen's vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS) - len(ADDED_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False, special=False) for token in ADDED_TOKENS]
    )
    return tokenizer


def build_files() -> dict[str, str]:
    """Return the generated files of the model folder: name to text."""
    tokenizer = train_tokenizer()
    end_of_turn = tokenizer.token_to_id("<|im_end|>")
    tokenizer_config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": CONTEXT_LENGTH,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "bos_token_id": None,
        "eos_token_id": end_of_turn,
        "head_dim": 128,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "max_position_embeddings": CONTEXT_LENGTH,
        "model_type": "qwen3",
        "num_attention_heads": 24,
        "num_hidden_layers": 64,
        "num_key_value_heads": 4,
        "pad_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": tokenizer.get_vocab_size(),
    }
    return {
        "tokenizer.json": tokenizer.to_str(pretty=False),
        "tokenizer_config.json": _dump(tokenizer_config),
        "config.json": _dump(config),
    }


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def main() -> None:
    """Write the files where they are shipped, or into another folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=MODEL_DIR)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, text in build_files().items():
        (out / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
