"""What is done for speed does not change the language that a text is told to have."""

from __future__ import annotations

import random

import py3langid
import pytest

from tasks.prompts.languages import identify_language

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
    assert identify_language(text) == language
    assert py3langid.classify(text)[0] == language
    # More of another language after the beginning is not read.
    assert identify_language(f"{text} {PARAGRAPHS['en'] * 5}") == language


def test_the_models_wider_numbers_give_its_own_answers() -> None:
    draw = random.Random(0)
    words = [word for text in PARAGRAPHS.values() for word in text.split()]
    for _ in range(300):
        text = " ".join(draw.choices(words, k=draw.randint(8, 30)))
        assert identify_language(text) == py3langid.classify(text[:120])[0]
