"""Lets an unmodified sglang run on a CPU: its CPU engine, and torchvision beside a CPU torch.

The torchvision of the package index is built for CUDA: its library cannot load here, and with it
two operators are missing that its modules name when they are imported.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

_OPERATORS = {
    "torchvision::nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "torchvision::qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


class _DeclareOperators(importlib.abc.MetaPathFinder):
    """Declares the operators just before torchvision is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            for operator, schema in _OPERATORS.items():
                torch.library.define(operator, schema)
        return None


sys.meta_path.insert(0, _DeclareOperators())
