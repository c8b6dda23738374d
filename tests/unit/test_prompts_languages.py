"""What is done for speed does not change the language that a text is told to have."""

from __future__ import annotations

import random
from pathlib import Path

import py3langid
import pyarrow.parquet as pq
import pytest

from tasks.prompts import collect
from tasks.prompts.candidates import Candidates
from tasks.prompts.collect import Collector
from tasks.prompts.config import ExtractionConfig, RowMapping, SourceConfig
from tasks.prompts.filters import RowFilter
from tasks.prompts.known import NOTHING_KNOWN
from tasks.prompts.languages import identify_languages
from tasks.prompts.ledger import Ledger
from tasks.prompts.prompt_file import REJECTION_SCHEMA, SEEN_SCHEMA, RecordWriter

PARAGRAPHS = {
    "en": "The old lighthouse keeper counted the ships each evening and wrote their names into a "
    "heavy book. How many ships passed in a week, if nine came every day but on Sunday?",
    "de": "Der alte Leuchtturmwärter zählte jeden Abend die Schiffe und schrieb ihre Namen in ein "
    "schweres Buch. Wie viele Schiffe fuhren in einer Woche vorbei, wenn es täglich neun waren?",
    "fr": "Le vieux gardien du phare comptait les navires chaque soir et notait leurs noms dans un "
    "gros livre. Combien de navires sont passés en une semaine, s'il en venait neuf par jour?",
    "es": "El viejo guardián del faro contaba los barcos cada noche y escribía sus nombres en un "
    "libro pesado. ¿Cuántos barcos pasaron en una semana, si venían nueve cada día?",
    "ru": "Старый смотритель маяка каждый вечер считал корабли и записывал их имена в тяжёлую "
    "книгу. Сколько кораблей прошло за неделю, если каждый день приходило девять?",
    "zh": "老灯塔看守人每天晚上都数船，并把船名写进一本厚厚的书里。如果每天有九艘船经过，"
    "一周一共有多少艘船？请把计算过程写出来，并说明为什么星期天没有船。守塔人还想知道一个月里"
    "一共会有多少艘船从这里经过，夏天比冬天多多少艘。请用完整的句子回答这些问题，不要只写数字。",
}


@pytest.mark.parametrize("language", PARAGRAPHS)
def test_the_beginning_of_a_text_tells_what_all_of_it_tells(language: str) -> None:
    text = PARAGRAPHS[language]
    # More of another language after the beginning is not read.
    mixed = f"{text} {PARAGRAPHS['en'] * 5}"
    assert identify_languages([text, mixed]) == [language, language]
    assert py3langid.classify(text)[0] == language


def _draw_texts() -> list[str]:
    draw = random.Random(0)
    words = [word for text in PARAGRAPHS.values() for word in text.split()]
    texts = [" ".join(draw.choices(words, k=draw.randint(8, 30))) for _ in range(300)]
    # Letters of which the model has no feature, all of them large, and not composed.
    return [
        *texts,
        "\u07ca\u07cb\u07cc" * 9,
        PARAGRAPHS["de"].upper(),
        "a\u0308o\u0308u\u0308 " * 20,
    ]


def test_many_texts_at_once_are_told_what_the_model_tells_each() -> None:
    texts = _draw_texts()
    expected = [py3langid.classify(text[:120])[0] for text in texts]
    assert len(set(expected)) > len(PARAGRAPHS)
    assert identify_languages(texts) == expected


def test_a_text_is_told_the_same_alone_and_beside_others() -> None:
    texts = [*_draw_texts()[-40:], "", "12 + 7?", "```\nfor moss in garden: pass\n```"]
    told = identify_languages(texts)
    assert told[-3:] == [None] * 3
    assert [identify_languages([text])[0] for text in texts] == told
    assert identify_languages(texts[::-1]) == told[::-1]
    assert identify_languages([]) == []


def _collect(folder: Path, rows: list[object]) -> tuple[list[object], list[tuple[object, ...]]]:
    """Judge rows; gives the conversations put aside and the rejections, in order."""
    folder.mkdir()
    config = SourceConfig(
        path="x.jsonl", languages=("en", "fr"), mapping=RowMapping(prompt="q", language="code")
    )
    with (
        Candidates(folder / "candidates") as candidates,
        RecordWriter(folder / "rejections", REJECTION_SCHEMA) as rejections,
        RecordWriter(folder / "seen", SEEN_SCHEMA) as seen,
    ):
        row_filter = RowFilter(config, ExtractionConfig())
        ledger = Ledger(rejections, seen)
        collector = Collector("x", config, row_filter, ledger, candidates, NOTHING_KNOWN)
        assert collector.collect(iter(rows), 0, None) == len(rows)
        kept: list[object] = list(candidates.read(range(len(candidates))))
    table = pq.read_table(folder / "rejections").to_pylist()
    return kept, [(row["row"], row["kind"], row["detail"]) for row in table]


@pytest.mark.parametrize("limit", ["_MOST_WAITING", "_MOST_WAITING_CHARS"])
def test_rows_that_wait_for_each_other_keep_their_order_and_their_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    codes = (None, None, "en", "de")
    rows: list[object] = [
        {"q": f"{PARAGRAPHS[language]} {n % 9}", "code": codes[n % 4]}
        for n in range(9)
        for language in PARAGRAPHS
    ]
    rows[5:5] = ["no row at all", {"q": 7}]
    together = _collect(tmp_path / "together", rows)
    kept, rejected = together
    assert len(kept) + len(rejected) == len(rows)
    assert (5, "not_an_object", "the row is str") in rejected
    assert {detail for _, kind, detail in rejected if kind == "language"} == {
        *(f"language {code} (by its text)" for code in ("de", "es", "ru", "zh")),
        "language de (labelled)",
    }
    monkeypatch.setattr(collect, limit, 1)
    assert _collect(tmp_path / "one by one", rows) == together
    monkeypatch.setattr(collect, limit, 7 if limit == "_MOST_WAITING" else 700)
    assert _collect(tmp_path / "in sevens", rows) == together
