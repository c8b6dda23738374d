"""Texts and conversations that wait on the disk come back as they were put aside."""

from __future__ import annotations

from pathlib import Path

from tasks.prompts.candidates import Texts


def test_texts_may_be_added_after_others_were_read(tmp_path: Path) -> None:
    wanted = ["eins", "zwölf Katzen", "", "drei"]
    with Texts(tmp_path / "texts") as texts:
        for number, text in enumerate(wanted):
            texts.append(text)
            assert texts.read(number) == text
            # Earlier sources' texts are read before the next source's are added.
            assert texts.read(0) == wanted[0]
        assert [texts.read(number) for number in range(len(wanted))] == wanted
