"""The checks of the cards' state: MIG, ECC, Xid, throttling, and how the cards reach each other.

Enters: facts from NVML and the kernel's log. Leaves: verdicts. Pure.
"""

from __future__ import annotations

from tasks.environment.box_facts import BoxFacts
from tasks.environment.gpu_checks import read_nvml_facts, used_gpus
from tasks.environment.record import BoxProfile, Verdict
from tasks.environment.verdicts import manual, verdict

# The card or its memory is at fault, whatever program ran: Xid catalogue of the driver's manual.
_FATAL_XIDS = frozenset({48, 62, 63, 64, 74, 79, 92, 95, 119, 120, 140, 143})
_UNSEEN = "not looked at: NVML does not answer"


def judge_mig(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge MIG: a server wants a whole card."""
    if read_nvml_facts(facts).error:
        return verdict("mig", "unknown", _UNSEEN)
    cards = used_gpus(facts, profile)
    split = [gpu.index for gpu in cards if gpu.mig]
    if split:
        indices = ",".join(map(str, split))
        fix = manual("disable_mig", f"Run `nvidia-smi -i {indices} -mig 0` and reset those cards.")
        return verdict("mig", "fail", f"GPUs {split} are split by MIG", fix=fix)
    if not cards or any(gpu.mig is None for gpu in cards):
        return verdict("mig", "unknown", "a card does not tell its MIG mode")
    return verdict("mig", "ok", "the cards are whole")


def judge_ecc(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge uncorrected memory errors since the last reboot."""
    if read_nvml_facts(facts).error:
        return verdict("ecc", "unknown", _UNSEEN)
    cards = used_gpus(facts, profile)
    faulty = {gpu.index: gpu.ecc_errors for gpu in cards if gpu.ecc_errors}
    if faulty:
        listed = ", ".join(f"GPU {index}: {count}" for index, count in faulty.items())
        fix = manual("reset_card", "Reset the card; replace it if the count grows again.")
        return verdict("ecc", "fail", f"uncorrected memory errors: {listed}", fix=fix)
    if not cards or any(gpu.ecc_errors is None for gpu in cards):
        return verdict("ecc", "unknown", "a card counts no memory errors (ECC is off or absent)")
    return verdict("ecc", "ok", "no uncorrected memory error")


def judge_xid(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge what the driver wrote into the kernel's log since the boot."""
    if facts.xids is None:
        return verdict("xid", "unknown", "the kernel's log cannot be read", command=("dmesg",))
    used = {_short_bus(gpu.bus_id): gpu.index for gpu in used_gpus(facts, profile) if gpu.bus_id}
    # Where a card's place is not known, every line counts.
    found = [xid for xid in facts.xids if not used or _short_bus(xid.bus_id) in used]
    lost = [xid for xid in facts.xids if xid.code == 79 and xid not in found]
    found += lost
    if not found:
        return verdict("xid", "ok", "no Xid in the kernel's log", command=("dmesg",))
    listed = ", ".join(f"Xid {xid.code} on {xid.bus_id}" for xid in found)
    fatal = any(xid.code in _FATAL_XIDS for xid in found)
    what = (
        "Reset or power-cycle the machine, and watch the card."
        if fatal
        else "A program of that card failed; look for more of them before a long run."
    )
    return verdict(
        "xid",
        "fail" if fatal else "warn",
        listed,
        fix=manual("xid_reset" if fatal else "xid_watch", what),
        command=("dmesg",),
        values={str(number): xid.line for number, xid in enumerate(found)},
    )


def judge_throttling(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge what slows a card down now; a power cap is the owner's choice."""
    check = "throttling"
    if read_nvml_facts(facts).error:
        return verdict(check, "unknown", _UNSEEN, severity="warning")
    cards = used_gpus(facts, profile)
    slow = {gpu.index: gpu.throttled_by for gpu in cards if gpu.throttled_by}
    if slow:
        listed = ", ".join(f"GPU {index}: {', '.join(why)}" for index, why in slow.items() if why)
        fix = manual("cool_cards", "See to cooling and power supply: such a card is far slower.")
        return verdict(check, "warn", listed, fix=fix, severity="warning")
    if not cards or any(gpu.throttled_by is None for gpu in cards):
        summary = "a card does not tell what slows it down"
        return verdict(check, "unknown", summary, severity="warning")
    return verdict(check, "ok", "nothing slows the cards down", severity="warning")


def judge_topology(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge how the cards reach each other, and say whether to split a model over them."""
    check = "topology"
    nvml = read_nvml_facts(facts)
    if nvml.error:
        return verdict(check, "unknown", _UNSEEN, severity="warning")
    cards = used_gpus(facts, profile)
    if len(cards) < 2:
        return verdict(check, "ok", "one card", severity="warning")
    if any(gpu.n_nvlinks is None for gpu in cards):
        return verdict(check, "unknown", "a card does not tell its links", severity="warning")
    tp_size = profile.launch.tp_size if profile.launch else 1
    pairs = [p for p in nvml.pairs if {p.first, p.second} <= {gpu.index for gpu in cards}]
    values = {
        "n_nvlinks": ",".join(str(gpu.n_nvlinks) for gpu in cards),
        "p2p": ",".join(f"{p.first}-{p.second}:{p.p2p}" for p in pairs),
        "levels": ",".join(f"{p.first}-{p.second}:{p.level}" for p in pairs),
    }
    if all(gpu.n_nvlinks for gpu in cards):
        summary = "the cards are joined by NVLink: tensor parallel pays for models over one card"
        return verdict(check, "ok", summary, values=values, severity="warning")
    if tp_size > 1:
        p2p = all(pair.p2p for pair in pairs) and bool(pairs)
        what = "Set serving.tp_size to 1: one copy a card (data parallel)"
        what += "." if p2p else ", or set NCCL_P2P_DISABLE=1: all_reduce is known to hang here."
        summary = f"tp_size {tp_size} over PCIe{'' if p2p else ' without peer access'}"
        fix = manual("data_parallel", what)
        return verdict(check, "fail", summary, fix=fix, values=values)
    summary = "no NVLink: one server a card (data parallel), as launched"
    return verdict(check, "ok", summary, values=values, severity="warning")


def _short_bus(bus_id: str) -> str:
    """Bring 00000000:38:00.0 and 0000:38:00 to one form: 38:00."""
    return ":".join(bus_id.lower().split(".")[0].split(":")[-2:])
