"""Repairs what can be repaired reversibly, and proves it: judge, compose, judge again.

Enters: a profile with the facts and verdicts of it. Leaves: an AppliedFix with the facts and
verdicts afterwards. A repair that does not make its checks pass is taken back and reported as such.
Packages are never installed and processes never ended here: those fixes are only named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tasks.environment.box_facts import BoxFacts, ToolkitFacts
from tasks.environment.checks import judge
from tasks.environment.compose import CannotComposeError, HomePlan, plan_home
from tasks.environment.facts import Progress, read_facts
from tasks.environment.launch_env import effective_environment
from tasks.environment.record import AppliedFix, BoxProfile, Status, Verdict
from tasks.environment.repair import apply_home, undo_home
from tasks.environment.toolkit_facts import find_wheels, read_toolkit
from tasks.environment.verdicts import COMPOSE

Mended = tuple[AppliedFix, BoxFacts, tuple[Verdict, ...]]
# The launch decides their outcome and not the file system: they must not take a good home back.
_OF_PEOPLE = ("jit_cache",)


def repair_box(
    profile: BoxProfile,
    facts: BoxFacts,
    verdicts: tuple[Verdict, ...],
    on_progress: Progress = lambda *_: None,
    read: Callable[[BoxProfile, Progress], BoxFacts] = read_facts,
) -> Mended:
    """Apply the one reversible repair, if a check asks for it, and judge again.

    Raises:
        OSError: The disk, or the compiler that builds the stub, fails; nothing has changed then.
    """
    asking = [each.id for each in verdicts if each.fix is not None and each.fix.id == COMPOSE]
    if not asking:
        nothing = AppliedFix(fix=COMPOSE, status="nothing", what="no check asks for it")
        return nothing, facts, verdicts
    plan = plan_repair(profile, facts, verdicts)
    if isinstance(plan, str):
        checks: dict[str, Status] = {each.id: each.status for each in verdicts if each.id in asking}
        refused = AppliedFix(fix=COMPOSE, status="refused", what=plan, checks=checks)
        return refused, facts, verdicts
    assert profile.cuda_dir is not None  # noqa: S101 - plan_repair looked
    is_new = apply_home(profile.cuda_dir, plan)
    after = read(profile, on_progress)
    judged = judge(after, profile)
    found = {each.id: each.status for each in judged if each.id in asking}
    failing = [check for check, status in found.items() if status == "fail"]
    failing = [check for check in failing if check not in _OF_PEOPLE]
    if failing:
        listed = ", ".join(failing)
        what = f"composed, and {listed} still failed: taken back"
        if is_new:
            undo_home(profile.cuda_dir)
        else:  # an earlier repair made it: nothing of this one is there to be taken back
            what = f"the home was composed already, and {listed} still failed: left as it was"
        return (
            AppliedFix(fix=COMPOSE, status="ineffective", what=what, checks=found),
            facts,
            verdicts,
        )
    what = f"{len(plan.links)} links at {profile.cuda_dir / 'current'}; all of CCCL from "
    what += str(plan.cccl_from)
    return AppliedFix(fix=COMPOSE, status="applied", what=what, checks=found), after, judged


def plan_repair(
    profile: BoxProfile, facts: BoxFacts, verdicts: tuple[Verdict, ...]
) -> HomePlan | str:
    """Plan the home that would mend the box, or say why none can be made."""
    if profile.cuda_dir is None:
        return "no folder for a composed home"
    python = facts.server_python
    site_packages = Path(python.site_packages) if python and python.site_packages else None
    found = _list_toolkits(site_packages, python.versions if python else {}, facts)
    if not found:
        return "there is no toolkit to compose from: install the pinned wheels first"
    toolkit = next((each for each in found if len(set(each.series.values())) == 1), None)
    if toolkit is None:
        mixed = next((each for each in verdicts if each.id == "cuda_coherence"), None)
        argv = mixed.fix.argv if mixed is not None and mixed.fix is not None else ()
        return f"pin first, compose second: {' '.join(argv)}"
    cards = facts.nvml.gpus if facts.nvml else ()
    capabilities = {gpu.capability for gpu in cards if gpu.index in profile.gpus and gpu.capability}
    try:
        return plan_home(
            Path(toolkit.home),
            site_packages,
            toolkit.versions,
            effective_environment(profile.cuda_dir),
            compiler=facts.host_compiler or None,
            capability=min(capabilities, default=profile.capability),
        )
    except CannotComposeError as error:
        return str(error)


def _list_toolkits(
    site_packages: Path | None, wheel_versions: Mapping[str, str], facts: BoxFacts
) -> list[ToolkitFacts]:
    """List what a home can be composed from: the wheels first, then what the servers find now."""
    found = []
    wheels = find_wheels(site_packages)
    if wheels is not None and (wheels / "bin" / "nvcc").exists():
        environ = {"CUDA_HOME": str(wheels)}
        found.append(read_toolkit(environ, site_packages, wheel_versions, None))
    # A home that was composed earlier is no toolkit of its own.
    if facts.toolkit is not None and facts.toolkit.origin != "composed":
        found.append(facts.toolkit)
    return [each for each in found if each is not None]
