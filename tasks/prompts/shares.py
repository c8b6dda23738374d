"""How many prompts each source gives to each domain, so that the dataset has its shares; pure.

Enters: target shares, the base dataset by domain, available prompts by source and domain. Leaves:
caps, the shares before and after, and for a share that cannot be reached one sentence that says
why. It exists so that the mix is solved before a GPU hour is spent, and not found out afterwards.

With F the size of the whole dataset, a domain of share T wants T x F - base rows, and gets at least
none and at most what is available. The largest F at which all of it adds up is taken; where no F
reaches every share, it is the one at which domains that have too much get nothing new and those
that have too little get all there is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tasks.prompts.config import MixConfig
from tasks.prompts.record import MixCap, MixShare, MixSolution

OTHERS = "(others)"
_N_HALVINGS = 200
# A share that is off by less is reached: the rest is rounding to whole prompts.
_TOLERANCE = 0.005

Cell = tuple[str, str]


def solve_mix(
    mix: MixConfig,
    available: Mapping[Cell, int],
    base_rows: Mapping[str, int],
    base_tokens: Mapping[str, int],
) -> MixSolution:
    """Solve for the caps of each source.

    Args:
        mix: Target shares.
        available: Prompts by (source, domain), sources in the configuration's order.
        base_rows: Rows of the base dataset by domain.
        base_tokens: Its supervised tokens by domain.
    """
    weights = _weigh(mix, available, base_rows, base_tokens)
    base = _fold(mix, base_rows if mix.unit == "rows" else base_tokens)
    there: defaultdict[str, float] = defaultdict(float)
    for (_, domain), n in available.items():
        there[_bucket(mix, domain)] += n * weights[domain]
    targets = {**mix.targets, OTHERS: max(0.0, 1 - sum(mix.targets.values()))}
    domains = [name for name in targets if targets[name] or base[name] or there[name]]
    # A domain that is nowhere would hold all others at nothing: they are solved without it.
    found = [name for name in domains if base[name] or there[name]]
    whole = sum(targets[name] for name in found)
    scaled = {name: targets[name] / whole if whole else 0.0 for name in found}
    total = _find_total(found, scaled, base, there)
    wanted = dict.fromkeys(domains, 0.0) | {
        name: min(max(scaled[name] * total - base[name], 0.0), there[name]) for name in found
    }
    caps = _cap(mix, available, weights, there, wanted)
    return _describe(mix, domains, targets, base, there, available, weights, caps)


def _weigh(
    mix: MixConfig,
    available: Mapping[Cell, int],
    base_rows: Mapping[str, int],
    base_tokens: Mapping[str, int],
) -> dict[str, float]:
    """Give what one new prompt of each domain counts: 1, or its expected supervised tokens."""
    n_rows, n_tokens = sum(base_rows.values()), sum(base_tokens.values())
    mean = n_tokens / n_rows if n_rows else 1.0
    weights: dict[str, float] = {}
    for _, domain in available:
        if mix.unit == "rows":
            weights[domain] = 1.0
        elif domain in mix.expected_tokens:
            weights[domain] = float(mix.expected_tokens[domain])
        else:
            rows = base_rows.get(domain, 0)
            weights[domain] = base_tokens.get(domain, 0) / rows if rows else mean
    return weights


def _bucket(mix: MixConfig, domain: str) -> str:
    return domain if domain in mix.targets else OTHERS


def _fold(mix: MixConfig, by_domain: Mapping[str, int]) -> Counter[str]:
    folded: Counter[str] = Counter()
    for domain, n in by_domain.items():
        folded[_bucket(mix, domain)] += n
    return folded


def _find_total(
    domains: Sequence[str],
    targets: Mapping[str, float],
    base: Mapping[str, float],
    there: Mapping[str, float],
) -> float:
    """Find the largest size of the whole at which the domains' amounts add up to it."""

    def surplus(total: float) -> float:
        amounts = (
            base[name] + min(max(targets[name] * total - base[name], 0.0), there[name])
            for name in domains
        )
        return sum(amounts) - total

    low, high = 0.0, float(sum(base.values()) + sum(there.values()))
    slack = 1e-9 * max(high, 1.0)
    if surplus(high) >= -slack:
        return high
    for _ in range(_N_HALVINGS):
        middle = (low + high) / 2
        if surplus(middle) >= -slack:
            low = middle
        else:
            high = middle
    return low


def _cap(
    mix: MixConfig,
    available: Mapping[Cell, int],
    weights: Mapping[str, float],
    there: Mapping[str, float],
    wanted: Mapping[str, float],
) -> dict[Cell, int]:
    """Share each domain's amount over its sources, in proportion to what they have."""
    caps: dict[Cell, int] = {}
    owed: defaultdict[str, float] = defaultdict(float)
    for cell, n in available.items():
        name = _bucket(mix, cell[1])
        exact = n * wanted[name] / there[name] if there[name] else 0.0
        # What rounding withheld from earlier sources is carried on, so that the sum is right.
        owed[name] += (exact - int(exact)) * weights[cell[1]]
        caps[cell] = min(int(exact), n)
        if owed[name] >= weights[cell[1]] * (1 - 1e-9) and caps[cell] < n:
            caps[cell] += 1
            owed[name] -= weights[cell[1]]
    return caps


def _describe(  # noqa: PLR0917
    mix: MixConfig,
    domains: Sequence[str],
    targets: Mapping[str, float],
    base: Mapping[str, float],
    there: Mapping[str, float],
    available: Mapping[Cell, int],
    weights: Mapping[str, float],
    caps: Mapping[Cell, int],
) -> MixSolution:
    taken: defaultdict[str, float] = defaultdict(float)
    for cell, n in caps.items():
        taken[_bucket(mix, cell[1])] += n * weights[cell[1]]
    n_base, n_all = sum(base.values()), sum(base.values()) + sum(there.values())
    n_after = n_base + sum(taken.values())
    shares = tuple(
        MixShare(
            domain=name,
            target=targets[name],
            base=base[name],
            available=there[name],
            taken=taken[name],
            before=base[name] / n_base if n_base else 0.0,
            untouched=(base[name] + there[name]) / n_all if n_all else 0.0,
            after=(base[name] + taken[name]) / n_after if n_after else 0.0,
        )
        for name in domains
    )
    return MixSolution(
        unit=mix.unit,
        shares=shares,
        caps=tuple(
            MixCap(source=source, domain=domain, n_available=n, n_taken=caps[source, domain])
            for (source, domain), n in available.items()
        ),
        unreachable=tuple(
            _explain(share, n_base, sum(there.values()) - share.available, mix.unit)
            for share in shares
            if abs(share.after - share.target) > _TOLERANCE
        ),
    )


def _explain(share: MixShare, n_base: float, n_elsewhere: float, unit: str) -> str:
    head = f"{share.domain}: {share.after:.1%} instead of {share.target:.1%}"
    if share.after < share.target:
        return (
            f"{head}; all {share.available:,.0f} {unit} of it that the sources have are taken, and "
            "more of other domains would push it down"
        )
    if not share.target:
        return f"{head}; the base dataset has {share.base:,.0f} {unit} of it"
    needed = share.base / share.target - n_base
    return (
        f"{head}; the base dataset has {share.base:,.0f} of {n_base:,.0f} {unit}, and bringing "
        f"that to {share.target:.0%} takes {needed:,.0f} new {unit} without {share.domain}, of "
        f"which the sources have {n_elsewhere:,.0f}"
    )
