"""Stands in for sglang's GPU kernels where there is no GPU: every name imports, no call works."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "0.4.2.post2"


class _NoKernel:
    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise NotImplementedError(f"{self.__name__}: there is no GPU here")

    def __getattr__(self, name: str) -> Any:
        return _look_up(self.__name__, name)


class _NoModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _look_up(self.__name__, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith("sgl_kernel.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _NoModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def _look_up(owner: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _NoKernel(f"{owner}.{name}")


def __getattr__(name: str) -> Any:
    return _look_up("sgl_kernel", name)


sys.meta_path.insert(0, _Finder())
