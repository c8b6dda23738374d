"""`verify --read-data[=5%]`: with a share, without one, and with nonsense."""

from __future__ import annotations

import pytest

from flows.cli import _complete
from flows.dataset.verdict import parse_share
from tasks.errors import UserError


@pytest.mark.parametrize(
    ("text", "share"), [("5%", 0.05), ("0.05", 0.05), ("100%", 1.0), ("0", 0.0), ("12.5%", 0.125)]
)
def test_a_share_is_read(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "half", "5", "-1", "101%", "5%%", "nan", "٥%"])
def test_what_is_no_share_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_share(text)
    assert "5%" in caught.value.remedy


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["verify", "s3://b/p", "--read-data"], ["verify", "s3://b/p", "--read-data=100%"]),
        (["verify", "--read-data", "s3://b/p"], ["verify", "--read-data=100%", "s3://b/p"]),
        (["verify", "--read-data", "--json"], ["verify", "--read-data=100%", "--json"]),
        (["verify", "p", "--read-data", "5%"], ["verify", "p", "--read-data", "5%"]),
        (["verify", "p", "--read-data=5%"], ["verify", "p", "--read-data=5%"]),
        ([], []),
    ],
)
def test_the_option_may_stand_alone(words: list[str], completed: list[str]) -> None:
    assert _complete(words) == completed
