"""What goes wrong on request.

Enters: a JSON object, at launch (--sim-faults) or live (POST /simulator/faults). Leaves: a Faults
record. It exists so that every failure which the pipeline must survive can be had on demand.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

_RATES = (
    "error_rate",
    "drop_rate",
    "empty_answer_rate",
    "empty_thinking_rate",
    "truncation_rate",
    "loop_rate",
)


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults in force; the default is none.

    The rates of answers (empty, truncated, looping) pick prompts by a hash of their ids, so the
    same prompts are hit on every server; error_rate and drop_rate draw anew for each request, and
    each server by its own --sim-luck.
    """

    slow: float = 1.0
    """Every decoding step takes this many times longer."""
    hang: bool = False
    """No request makes progress; /health still answers 200."""
    death: bool = False
    """The process kills itself at once, as kill -9 would."""
    death_after_requests: int | None = None
    """The process kills itself when this many more generations have ended."""
    error_rate: float = 0.0
    """Share of requests answered with HTTP 500 at once."""
    drop_rate: float = 0.0
    """Share of requests whose connection closes without an answer after the work was done."""
    empty_answer_rate: float = 0.0
    """Share of prompts answered by EOS inside thinking, or by EOS right after it."""
    empty_thinking_rate: float = 0.0
    """Share of prompts whose thinking is empty."""
    truncation_rate: float = 0.0
    """Share of prompts whose answer runs into max_tokens."""
    loop_rate: float = 0.0
    """Share of prompts whose answer repeats one paragraph again and again."""

    @classmethod
    def from_json(cls, value: Any) -> Faults:
        """Check a decoded JSON object; fields that it does not name are off.

        Raises:
            ValueError: naming the field that is unknown or out of range.
        """
        if not isinstance(value, dict):
            raise ValueError("faults must be a JSON object")
        known = {field.name for field in fields(cls)}
        for name, setting in value.items():
            if name not in known:
                raise ValueError(f"unknown fault {name!r}; known: {', '.join(sorted(known))}")
            number = isinstance(setting, int | float) and not isinstance(setting, bool)
            if name in _RATES and not (number and 0 <= setting <= 1):
                raise ValueError(f"{name} must be a number from 0 to 1")
            if name == "slow" and not (number and setting > 0):
                raise ValueError("slow must be a number above 0")
            if name in ("hang", "death") and not isinstance(setting, bool):
                raise ValueError(f"{name} must be true or false")
            if name == "death_after_requests" and not (
                setting is None or (isinstance(setting, int) and number and setting > 0)
            ):
                raise ValueError(f"{name} must be null or a whole number above 0")
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return asdict(self)
