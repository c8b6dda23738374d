"""The throughput plot: true to what was made, bounded in memory, readable with and without SVG."""

from __future__ import annotations

import base64
import itertools
import re
from xml.etree import ElementTree as ET

import pytest

from flows.pages.plot import SpeedSeries, draw_svg, resample, write_plot


def make_series(n: int, every: float = 10.0) -> SpeedSeries:
    """Make 100 tokens/s in the first half, 300 in the second."""
    series = SpeedSeries()
    n_tokens = 0.0
    for step in range(1, n + 1):
        n_tokens += every * (100 if step <= n // 2 else 300)
        series.add(step * every, n_tokens)
    return series


@pytest.mark.parametrize("n", [10, 240, 5000])
def test_every_token_is_in_the_curve_however_long_the_run(n: int) -> None:
    steps = make_series(n).speeds()
    assert len(steps) <= 240
    total = sum((end - begin) * speed for begin, end, speed in steps)
    assert total == pytest.approx(n * 10 * 200)
    assert steps[0][0] == 0.0
    assert steps[-1][1] == n * 10
    assert all(left[1] == right[0] for left, right in itertools.pairwise(steps))
    halves = resample(steps, 2)
    assert halves == pytest.approx([100, 300], rel=0.05)


def test_the_page_has_the_curve_as_a_picture_and_as_text() -> None:
    text = write_plot(make_series(60))
    assert "**200 tokens/s on average over 10 min**" in text
    assert "300 at most" in text
    fence = text.split("```text\n")[1]
    assert re.match(r"[▁▂▃▄▅▆▇█]{60}  0 to 300 tokens/s", fence)
    assert fence[0] < fence[59]
    encoded = re.search(r"data:image/svg\+xml;base64,([^)]+)\)", text)
    assert encoded is not None
    root = ET.fromstring(base64.b64decode(encoded[1]))  # noqa: S314  (our own)
    assert root.tag.endswith("svg")
    labels = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert labels[1:6] == ["0", "100", "200", "300", "400"]
    assert labels[-1] == "10 min"
    (curve,) = [node for node in root.iter() if node.tag.endswith("polyline")]
    heights = [float(point.split(",")[1]) for point in curve.attrib["points"].split()]
    assert heights[0] > heights[-1], "faster stands higher"
    assert len(text) < 20_000


def test_before_anything_is_made_and_while_nothing_moves_there_is_no_fault() -> None:
    assert "nothing" in write_plot(SpeedSeries())
    still = SpeedSeries()
    still.add(5.0, 0.0)
    still.add(5.0, 0.0)
    assert "0 tokens/s on average" in write_plot(still)
    assert ET.fromstring(draw_svg(still.speeds())) is not None  # noqa: S314
