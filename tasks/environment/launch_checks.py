"""The checks of the launch itself: kernels for the card, mamba flags, MTP, the model's files. Pure.

What fails minutes after the start, inside the server, or not at all and then gives wrong kernels,
costs nothing here.
"""

from __future__ import annotations

from tasks.environment import compat
from tasks.environment.box_facts import BoxFacts
from tasks.environment.gpu_checks import used_gpus
from tasks.environment.record import BoxProfile, Verdict
from tasks.environment.verdicts import manual, verdict

_MODEL_FIX = "Correct model.path, or download the model anew: huggingface-cli download"


def judge_attention(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge the attention backend for the card and the version."""
    check = "attention_backend"
    if profile.launch is None:
        return verdict(check, "skip", "no launch settings to judge")
    capabilities = _capabilities(facts, profile)
    conflicts = _find(facts, profile, "attention_")
    if conflicts:
        what = "; ".join(conflict.what for conflict in conflicts.values())
        fix = manual(check, " ".join(each.remedy for each in conflicts.values()))
        return verdict(check, "fail", what, fix=fix)
    if not capabilities:
        return verdict(check, "unknown", "the card is not known")
    backend = profile.launch.attention_backend
    chosen = backend or ", ".join(
        sorted({compat.default_attention(capability) for capability in capabilities})
    )
    how = "" if backend else " (the server's default)"
    return verdict(check, "ok", f"{chosen}{how} has kernels for the card")


def judge_mamba(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge the mamba flags against version, radix cache and speculative decoding."""
    if profile.launch is None:
        return verdict("mamba", "skip", "no launch settings to judge")
    conflicts = _find(facts, profile, "mamba_", "linear_attn_")
    if conflicts:
        what = "; ".join(conflict.what for conflict in conflicts.values())
        fix = manual("mamba", " ".join(each.remedy for each in conflicts.values()))
        return verdict("mamba", "fail", what, fix=fix)
    if _is_hybrid(facts, profile) is None and profile.launch.mamba_strategy is None:
        return verdict("mamba", "unknown", "whether the model has mamba layers is not known")
    return verdict("mamba", "ok", "no conflict among the mamba settings")


def judge_mtp(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge whether heads for multi-token prediction lie idle."""
    if profile.launch is None:
        return verdict("mtp", "skip", "no launch settings to judge", severity="warning")
    if profile.launch.n_draft_tokens:
        summary = f"{profile.launch.n_draft_tokens} tokens are drafted at once"
        return verdict("mtp", "ok", summary, severity="warning")
    has_mtp = facts.model.has_mtp if facts.model else None
    if has_mtp is None:
        summary = "whether the model has MTP heads is not known"
        return verdict("mtp", "unknown", summary, severity="warning")
    if not has_mtp:
        return verdict("mtp", "ok", "the model has no MTP heads", severity="warning")
    measured = profile.mtp_measured or "nobody has measured it here: `draftmill tune` does"
    fix = manual("measure_mtp", "Measure with serving.speculative (EAGLE) before a long run.")
    summary = f"the model has MTP heads and they are off ({measured})"
    return verdict("mtp", "warn", summary, fix=fix, severity="warning")


def judge_model(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge whether the model's files are there and whole."""
    model, check = facts.model, "model_files"
    if model is None:
        return verdict(check, "skip", f"no model is served here: {profile.no_gpu_reason}")
    if model.error:
        return verdict(check, "unknown", f"{model.path}: {model.error}")
    if not model.is_local and model.missing:
        # Loading the tokenizer alone has put some of the files there already.
        summary = f"{model.path} is not whole in the Hub cache: the first server downloads it"
        fix = manual("download_model", f"Run `huggingface-cli download {model.path}` first.")
        return verdict(check, "warn", summary, fix=fix)
    if model.missing:
        listed = ", ".join(model.missing[:5])
        more = f" and {len(model.missing) - 5} more" if len(model.missing) > 5 else ""
        fix = manual("download_model", f"{_MODEL_FIX} {model.path}")
        return verdict(check, "fail", f"{model.path} lacks {listed}{more}", fix=fix)
    size = "" if model.weights_gib is None else f", {model.weights_gib:.1f} GiB of weights"
    return verdict(check, "ok", f"{model.path} is complete{size}")


def judge_model_disk(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge the room for a model that has still to be downloaded."""
    model, check = facts.model, "model_disk"
    if model is None:
        return verdict(check, "skip", f"no model is served here: {profile.no_gpu_reason}")
    if not model.missing and not model.error:
        return verdict(check, "ok", "the model is there already")
    needed = profile.weights_gib
    if model.disk is None or needed is None:
        summary = "how large the model is, or where it would land, is not known"
        return verdict(check, "unknown", summary)
    values = {"free_gib": f"{model.disk.free_gib:.1f}", "path": model.disk.path}
    if model.disk.free_gib < needed:
        summary = f"{model.disk.free_gib:.1f} GiB are free for the model, {needed:.1f} are needed"
        fix = manual("model_room", "Free some room, or point HF_HOME at a larger disk.")
        return verdict(check, "fail", summary, fix=fix, values=values)
    return verdict(check, "ok", f"{model.disk.free_gib:.1f} GiB are free for it", values=values)


def _capabilities(facts: BoxFacts, profile: BoxProfile) -> set[tuple[int, int]]:
    found = {gpu.capability for gpu in used_gpus(facts, profile) if gpu.capability}
    return found or ({profile.capability} if profile.capability else set())


def _is_hybrid(facts: BoxFacts, profile: BoxProfile) -> bool | None:
    if profile.launch is not None and profile.launch.hybrid is not None:
        return profile.launch.hybrid
    if facts.model is not None and facts.model.architectures:
        return compat.is_hybrid(list(facts.model.architectures))
    return None


def _find(facts: BoxFacts, profile: BoxProfile, *prefixes: str) -> dict[str, compat.Conflict]:
    assert profile.launch is not None  # noqa: S101 - the callers looked
    choice = profile.launch.of_model(_is_hybrid(facts, profile))
    capabilities: set[tuple[int, int] | None] = {*_capabilities(facts, profile)}
    return {
        conflict.id: conflict
        for capability in (capabilities or {None})
        for conflict in compat.find_conflicts(choice.on_card(capability))
        if conflict.id.startswith(prefixes)
    }
