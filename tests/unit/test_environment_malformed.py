"""What lies malformed on a box is a fact of it, and never the end of the doctor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.environment.model_facts import read_model
from tasks.environment.toolkit_facts import find_wheels, read_toolkit
from tests.support.toolkits import write_wheels


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", '{"text_config": 3}'),
        ("model.safetensors.index.json", "{}"),
        ("model.safetensors.index.json", '{"weight_map": ["a"]}'),
    ],
)
def test_a_models_files_of_another_form_are_named(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    found = read_model(str(tmp_path), None)
    assert "is malformed" in found.error


def test_flags_with_an_open_quote_are_read_as_words(tmp_path: Path) -> None:
    home = write_wheels(tmp_path / "site", cccl=False)
    (tmp_path / "cccl" / "nv").mkdir(parents=True)
    (tmp_path / "cccl" / "nv" / "target").touch()
    flags = f"-I{tmp_path / 'cccl'} '-DX"
    environ = {"CUDA_HOME": str(home), "NVCC_PREPEND_FLAGS": flags}
    found = read_toolkit(environ, None, {}, None)
    assert found is not None
    assert found.has_nv_target


def test_the_toolkit_among_the_wheels_is_the_one_of_the_newest_cuda(tmp_path: Path) -> None:
    for name in ("cu9", "cu12", "cu13", "cudnn", "cusparselt"):
        (tmp_path / "nvidia" / name / "include").mkdir(parents=True)
    (tmp_path / "nvidia" / "cu14").mkdir()
    assert find_wheels(tmp_path) == tmp_path / "nvidia" / "cu13"
