"""Figures for reports, sound and hostile ones."""

from __future__ import annotations

from typing import Any

from tasks.report.composition import Composition, CompositionCounter
from tasks.report.generation import GenerationCounter
from tasks.report.record import (
    CanaryFigures,
    GateFigure,
    GenerationFigures,
    ReportFigures,
    ShownSample,
    Span,
    VerificationFigure,
)

PAYLOADS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "</title><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "{{ 7 * 7 }}{% for x in y %}",
    "javascript:alert(1)",
    "![x](http://evil.example/x.png) [y](javascript:alert(1))",
    "```\n# heading\n<b>bold</b>",
    "\x1b[31mred\x1b[0m\r\nSet-Cookie: a=b",
    "abc\u202edlrow\u2066\u200f\u061c\ufeff",
    "\ud800 lone",
    "&lt;b&gt; &#60;script&#62;",
]


def make_composition(domain: str = "maths", source: str = "invented", n: int = 3) -> Composition:
    """Count `n` rows of one domain and one source."""
    counter = CompositionCounter()
    for i in range(n):
        counter.add(domain, source, 100 * (i + 1), 80 * (i + 1))
    return counter.freeze()


def make_sample(text: str = "Five.", **changes: Any) -> ShownSample:
    """Show an invented sample."""
    spans = (Span(text="What is 2 + 3?", supervised=False), Span(text=text, supervised=True))
    fields: dict[str, Any] = {
        "id": "0" * 32 + "#s0#g0",
        "source": "invented",
        "domain": "maths",
        "finish_reason": "stop",
        "n_tokens": 12,
        "n_supervised_tokens": 4,
        "spans": spans,
    }
    return ShownSample(**{**fields, **changes})


def make_generation(
    url: str = "http://127.0.0.1:1",
    version: str = "0.5.23",
    *,
    why: str = "server_error",
    slots: int = 4,
    n_answers: int = 20,
) -> GenerationFigures:
    """Answer two requests at once for `n_answers` seconds in all, and lose one."""
    counter = GenerationCounter()
    for i in range(n_answers):
        counter.add_answer(
            url,
            prompt_tokens=50,
            output_tokens=100 + i,
            reasoning_tokens=40,
            latency_seconds=2.0,
            ended_at=1_900_000_000.0 + i + 2,
            retried=[why] if i == 0 else [],
        )
    counter.add_failure("0" * 32 + "#s0", why, why, 3)
    return counter.freeze({url: version}, {url: slots})


def make_report(**changes: Any) -> ReportFigures:
    """Make figures with a little of everything."""
    fields: dict[str, Any] = {
        "name": "autumn mix",
        "uri": "file:///data/run",
        "revision": 2,
        "created_at": "2026-11-29T12:00:00+00:00",
        "simulated": False,
        "counts": {"n_prompts": 1000, "n_conversations": 1000, "n_completed": 985, "n_failed": 15},
        "before": make_composition("code", "base", 5),
        "after": Composition.sum([make_composition("code", "base", 5), make_composition()]),
        "finish_reasons": {"stop": 985},
        "failures": {"deadline": 15},
        "gates": (GateFigure(name="empty_answer", n_flagged=3, n_judged=1000, threshold=0.02),),
        "n_asked": 1000,
        "generation": make_generation(),
        "samples": (make_sample(),),
        "settings": {"seed": 0},
        "lineage": {"plan": "ab" * 32},
    }
    return ReportFigures(**{**fields, **changes})


def make_canary(**changes: Any) -> CanaryFigures:
    """Make figures of a canary."""
    shared = make_report().model_dump(
        include={"name", "uri", "created_at", "simulated", "counts", "gates", "samples"}
    )
    return CanaryFigures(**{**shared, "generation": make_generation(), **changes})


def poison(payload: str) -> ReportFigures:
    """Put a payload wherever a stranger could."""
    return make_report(
        name=payload,
        uri=payload,
        created_at=payload,
        before=make_composition(payload, payload),
        after=make_composition(payload, payload),
        finish_reasons={payload: 1},
        failures={payload: 1},
        rejections={payload: 1},
        dropped={payload: 1},
        gates=(GateFigure(name=payload, n_flagged=1, n_judged=1, threshold=0.1),),
        generation=make_generation(payload, payload, why=payload),
        verification=VerificationFigure(
            ok=False, n_objects=1, share_read=1.0, problems=(payload,), verified_at=payload
        ),
        samples=(
            make_sample(
                payload,
                id=payload,
                source=payload,
                domain=payload,
                finish_reason=payload,
                flags=(payload,),
            ),
            make_sample(payload, id=payload, source=payload),
        ),
        settings={payload.encode("utf-8", "replace").decode(): "x"},
        lineage={payload: payload},
    )
