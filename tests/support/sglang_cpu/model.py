"""A Qwen3 of 600,000 random weights with the simulator's tokenizer and chat template.

Its answers are random words; they end, and thinking ends, at rates that tests can wait for: one
dimension of every hidden state is constant, and the output row of a token weighs it, which gives
that token a fixed log-odds.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tests.support.simulator import MODEL_DIR

_HIDDEN, _INNER, _LAYERS, _HEADS, _KV_HEADS, _HEAD_DIM = 64, 128, 2, 4, 2, 16
_CONTEXT = 4096
_TOKENS_TO_THINK = 25
_TOKENS_TO_END = 120
_NEVER = -30.0


def write_tiny_model(folder: Path) -> Path:
    """Write config, weights, tokenizer and template to a new folder; give it back."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(MODEL_DIR / name, folder / name)
    config = json.loads((MODEL_DIR / "config.json").read_text())
    config |= {
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": _CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _write_safetensors(folder / "model.safetensors", _draw_weights(config["vocab_size"]))
    return folder


def _draw_weights(n_vocab: int) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(0)

    def draw(*shape: int, scale: float = 0.05) -> NDArray[np.float32]:
        return random.normal(0, scale, shape).astype(np.float32)

    ones = np.ones(_HIDDEN, np.float32)
    weights = {"model.embed_tokens.weight": draw(n_vocab, _HIDDEN), "model.norm.weight": ones}
    weights["model.embed_tokens.weight"][:, 0] = 1.0
    weights["lm_head.weight"] = draw(n_vocab, _HIDDEN)
    # After the norm the constant dimension is near sqrt(hidden), all else is small.
    weights["lm_head.weight"][:, 0] = _log_odds(n_vocab) / math.sqrt(_HIDDEN)
    for layer in range(_LAYERS):
        stem = f"model.layers.{layer}"
        weights |= {
            f"{stem}.input_layernorm.weight": ones,
            f"{stem}.post_attention_layernorm.weight": ones,
            f"{stem}.self_attn.q_proj.weight": draw(_HEADS * _HEAD_DIM, _HIDDEN),
            f"{stem}.self_attn.k_proj.weight": draw(_KV_HEADS * _HEAD_DIM, _HIDDEN),
            f"{stem}.self_attn.v_proj.weight": draw(_KV_HEADS * _HEAD_DIM, _HIDDEN),
            f"{stem}.self_attn.o_proj.weight": draw(_HIDDEN, _HEADS * _HEAD_DIM, scale=0.005),
            f"{stem}.self_attn.q_norm.weight": np.ones(_HEAD_DIM, np.float32),
            f"{stem}.self_attn.k_norm.weight": np.ones(_HEAD_DIM, np.float32),
            f"{stem}.mlp.gate_proj.weight": draw(_INNER, _HIDDEN),
            f"{stem}.mlp.up_proj.weight": draw(_INNER, _HIDDEN),
            f"{stem}.mlp.down_proj.weight": draw(_HIDDEN, _INNER, scale=0.005),
        }
    return weights


def _log_odds(n_vocab: int) -> NDArray[np.float32]:
    """Give each token's log-odds against an ordinary one: words only, and two that end things."""
    template = ChatTemplate.load(ModelConfig(path=str(MODEL_DIR)))
    odds = np.full(n_vocab, _NEVER, np.float32)
    for token in range(n_vocab):
        text = template.decode([token])
        if text.isascii() and text.isprintable() and "<" not in text:
            odds[token] = 0.0
    n_words = int((odds == 0).sum())
    [think_end] = template.encode("</think>")
    [end] = template.encode("<|im_end|>")
    odds[think_end] = math.log(n_words / _TOKENS_TO_THINK)
    odds[end] = math.log(n_words / _TOKENS_TO_END)
    return odds


def _write_safetensors(path: Path, weights: dict[str, NDArray[np.float32]]) -> None:
    """Write bfloat16 tensors. Source: the safetensors format (header length, JSON, data)."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, weight in weights.items():
        raw = (weight.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
