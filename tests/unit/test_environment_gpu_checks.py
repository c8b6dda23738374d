"""Judgements on GPUs, driver, CUDA toolkit and launch, at the edges of each rule."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.environment.box_facts import (
    GpuProcess,
    JitCacheFacts,
    NvmlFacts,
    PairFacts,
    StageFacts,
    XidFacts,
)
from tasks.environment.compat import LaunchChoice
from tasks.environment.symptoms import NVML_MEANING
from tests.support.boxes import (
    OPEN_MODULE,
    TOOLKIT_VERSIONS,
    card,
    cards,
    judged,
    make_facts,
    make_model,
    make_nvml,
    make_probe,
    make_profile,
    make_python,
    make_toolkit,
)

TRAINING = (GpuProcess(pid=918273, name="/opt/train/.venv/bin/python3 train.py"),)


@pytest.mark.parametrize("error", sorted(NVML_MEANING))
def test_each_nvml_error_has_a_meaning_and_a_remedy_of_its_own(error: str) -> None:
    found = judged(make_facts(nvml=NvmlFacts(error=error)))
    assert found["nvml"].status in ("fail", "unknown")
    assert found["nvml"].summary == NVML_MEANING[error][0]
    assert found["nvml"].fix is not None
    assert found["nvml"].fix.what == NVML_MEANING[error][1]
    # What cannot be known is not called sound.
    assert found["gpus"].status == found["gpu_memory"].status == "unknown"


def leftover() -> tuple[Any, ...]:
    """Cards 2 and 3 hold a training run; the second tells no process, as in a container."""
    held = {"memory_used_mib": 41236}
    return (
        *(card(index) for index in (0, 1)),
        card(2, **held, processes=TRAINING),
        card(3, **held),
        *(card(index) for index in (4, 5, 6, 7)),
    )


def test_a_leftover_training_run_is_named_and_never_ended() -> None:
    facts = make_facts(nvml=make_nvml(gpus=leftover()))
    found = judged(facts, make_profile(weights_gib=54e9 / 2**30))["gpu_memory"]
    assert found.status == "fail"
    assert "GPU 2 holds 41236 MiB (pid 918273 /opt/train/.venv/bin/python3 train.py)" in (
        found.summary
    )
    assert "GPU 3 holds 41236 MiB" in found.summary
    assert found.fix is not None
    assert (found.fix.kind, found.fix.argv) == ("manual", ())
    unused = judged(facts, make_profile(gpus=(0, 1)))["gpu_memory"]
    assert unused.status == "ok"
    # A model that fits beside it is served, with a warning.
    assert judged(facts, make_profile(weights_gib=20.0))["gpu_memory"].status == "warn"
    unknown = make_facts(nvml=make_nvml(gpus=leftover()), model=None)
    assert judged(unknown)["gpu_memory"].status == "fail"


def test_54_gb_of_weights_need_a_card_of_more_than_that() -> None:
    small = make_facts(nvml=make_nvml(gpus=cards(memory_total_mib=49140)))
    found = judged(small, make_profile(weights_gib=54e9 / 2**30, kv_gib=10.0))["gpu_memory"]
    assert found.status == "fail"
    assert "GPU 0 has 48.0 GiB, weights and KV cache need 60.3" in found.summary
    split = LaunchChoice(sglang_version="0.5.12", tp_size=2)
    halved = make_profile(weights_gib=54e9 / 2**30, kv_gib=10.0, launch=split)
    assert judged(small, halved)["gpu_memory"].status == "ok"


def test_what_our_own_living_fleet_holds_is_ours() -> None:
    ours = (GpuProcess(pid=4711, name="sglang::scheduler"),)
    gpus = cards(memory_used_mib=84700, processes=ours)
    profile = make_profile(own_ports=tuple(range(30000, 30008)), own_pids=(4711,))
    assert judged(make_facts(nvml=make_nvml(gpus=gpus)), profile)["gpu_memory"].status == "ok"
    # In a container no process is shown: a living fleet is the likeliest holder.
    hidden = cards(memory_used_mib=84700)
    assert judged(make_facts(nvml=make_nvml(gpus=hidden)), profile)["gpu_memory"].status == "ok"
    stranger = cards(memory_used_mib=84700, processes=(*ours, GpuProcess(pid=9)))
    found = judged(make_facts(nvml=make_nvml(gpus=stranger)), profile)["gpu_memory"]
    assert found.status == "fail"
    assert "(pid 9)" in found.summary


def test_cards_of_two_kinds_or_of_another_kind_than_the_profiles_are_a_warning() -> None:
    mixed = (card(0, name="NVIDIA B200"), *cards()[1:])
    assert judged(make_facts(nvml=make_nvml(gpus=mixed)))["gpus"].status == "warn"
    found = judged(make_facts(), make_profile(capability=(10, 0)))["gpu_architecture"]
    assert (found.status, found.summary) == ("warn", "SM120; the configuration is made for SM100")


def test_the_driver_must_be_new_enough_for_the_runtime() -> None:
    old = make_facts(nvml=make_nvml(driver_version="570.86"), kernel_module="")
    found = judged(old)["driver"]
    assert "570.86 is too old for CUDA 13.0.96, which needs 580" in found.summary
    twelve = make_python(nvidia_cuda_runtime="12.8.90")
    assert judged(make_facts(nvml=old.nvml, server_python=twelve))["driver"].status == "ok"
    # Without a runtime wheel, the toolkit's headers tell.
    headers = make_python(nvidia_cuda_runtime=None)
    assert judged(make_facts(nvml=old.nvml, server_python=headers))["driver"].status == "fail"
    early = make_facts(nvml=make_nvml(cuda_version=12080))
    assert judged(early)["driver"].status == "fail"


def test_blackwell_needs_the_open_module_of_the_drivers_own_version() -> None:
    closed = OPEN_MODULE.replace("Open Kernel Module for x86_64", "x86_64 Kernel Module")
    assert judged(make_facts(kernel_module=closed))["kernel_module"].status == "fail"
    hopper = make_nvml(gpus=cards(capability=(9, 0)))
    assert judged(make_facts(kernel_module=closed, nvml=hopper))["kernel_module"].status == "ok"
    found = judged(make_facts(nvml=make_nvml(driver_version="580.126")))["kernel_module"]
    assert "580.105.08" in found.summary
    assert found.fix is not None
    assert "Reboot" in found.fix.what


def test_an_xid_counts_where_it_concerns_a_card_of_the_run() -> None:
    hang = XidFacts(bus_id="0000:03:00", code=8, line="NVRM: Xid (PCI:0000:03:00): 8")
    facts = make_facts(xids=(hang,))
    assert judged(facts)["xid"].status == "warn"
    assert judged(facts, make_profile(gpus=(0, 1)))["xid"].status == "ok"
    # A card that fell off the bus is in no list any more.
    lost = XidFacts(bus_id="0000:77:00", code=79, line="NVRM: Xid (PCI:0000:77:00): 79")
    assert judged(make_facts(xids=(lost,)))["xid"].status == "fail"


def test_without_nvlink_the_advice_is_one_server_a_card() -> None:
    alone = judged(make_facts())["topology"]
    assert (alone.status, "data parallel" in alone.summary) == ("ok", True)
    joined = judged(make_facts(nvml=make_nvml(gpus=cards(n_nvlinks=18))))["topology"]
    assert (joined.status, "tensor parallel" in joined.summary) == ("ok", True)
    split = make_profile(launch=LaunchChoice(sglang_version="0.5.12", tp_size=2))
    blocked = make_nvml(pairs=(PairFacts(first=0, second=1, level=50, p2p=False),))
    found = judged(make_facts(nvml=blocked), split)["topology"]
    assert found.status == "fail"
    assert found.fix is not None
    assert "NCCL_P2P_DISABLE=1" in found.fix.what


def test_parts_of_different_cuda_versions_are_pinned_and_never_composed() -> None:
    mixed = make_toolkit(versions=TOOLKIT_VERSIONS | {"nvcc": "13.2.86"})
    found = judged(make_facts(toolkit=mixed))["cuda_coherence"]
    assert "nvcc 13.2" in found.summary
    assert found.fix is not None
    assert found.fix.kind == "pip"
    assert found.fix.argv[-1] == "cuda-toolkit[nvcc,crt,nvvm,cccl,cudart]==13.0.2"
    newer = judged(make_facts(toolkit=mixed), make_profile(sglang_version="0.5.23"))
    assert newer["cuda_coherence"].fix is not None
    assert newer["cuda_coherence"].fix.argv[-1].endswith("==13.0.3")


def test_a_toolkit_that_lies_in_the_wheels_is_found_by_nobody() -> None:
    wheels = make_facts(environ={}, toolkit=make_toolkit(origin="wheels"))
    found = judged(wheels)["cuda_home"]
    assert (found.status, "where nobody looks" in found.summary) == ("fail", True)
    assert judged(make_facts(environ={}, toolkit=None))["cuda_home"].status == "fail"
    assert judged(make_facts(folders={"/cuda": False}))["cuda_home"].status == "fail"


def test_a_card_hidden_from_the_run_is_a_warning() -> None:
    facts = make_facts(environ={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert judged(facts)["visible_devices"].status == "warn"
    assert judged(facts, make_profile(gpus=(0, 1)))["visible_devices"].status == "ok"


@pytest.mark.parametrize(
    ("stage", "stderr", "fix"),
    [
        ("preprocess", "fatal error: nv/target: No such file or directory", "compose_cuda_home"),
        ("link", "/usr/bin/ld: cannot find -lcudart: No such file", "compose_cuda_home"),
        ("compile", "ptxas fatal   : Unsupported .version 9.2;", "coherent_cuda_wheels"),
        ("compile", "internal error", "read_probe"),
    ],
)
def test_the_probes_message_leads_to_the_fix(stage: str, stderr: str, fix: str) -> None:
    found = judged(make_facts(probe=make_probe(stage, stderr)))["cuda_probe"]
    assert found.status == "fail"
    assert found.evidence.returncode == 1
    assert stderr in found.evidence.values["stderr"]
    assert found.fix is not None
    assert found.fix.id == fix


def test_a_probe_that_links_without_needing_libcuda_fails() -> None:
    found = judged(make_facts(probe=make_probe(needs_libcuda=False)))["cuda_probe"]
    assert (found.status, "libcuda.so.1" in found.summary) == ("fail", True)
    ran = StageFacts(name="run", argv=("python",), returncode=6, stderr="")
    crashed = make_probe().model_copy(update={"stages": (*make_probe().stages, ran)})
    assert judged(make_facts(probe=crashed))["cuda_probe"].summary.startswith("run for sm_120")


def test_a_cache_kept_by_toolchain_is_sound_at_any_age() -> None:
    cache = JitCacheFacts(path="/jit/a1b2", n_objects=3, oldest=10.0, keyed_by="a1b2")
    assert judged(make_facts(jit_cache=cache))["jit_cache"].status == "ok"
    stale = cache.model_copy(update={"keyed_by": "c3d4"})
    assert judged(make_facts(jit_cache=stale))["jit_cache"].status == "warn"


def test_the_launch_is_judged_with_the_card_that_was_found() -> None:
    profile = make_profile(launch=LaunchChoice(sglang_version="0.5.12", attention_backend="fa4"))
    found = judged(make_facts(), profile)["attention_backend"]
    assert "fa4 has no kernels for SM120" in found.summary
    default = make_profile(launch=LaunchChoice(sglang_version="0.5.12"))
    assert (
        "flashinfer (the server's default)"
        in judged(make_facts(), default)["attention_backend"].summary
    )
    hopper = make_facts(nvml=make_nvml(gpus=cards(capability=(9, 0))))
    assert judged(hopper, default)["attention_backend"].summary.startswith("fa3")


def test_idle_mtp_heads_are_told_with_what_was_measured() -> None:
    facts = make_facts(model=make_model(has_mtp=True))
    profile = make_profile(mtp_measured="off 1,180 tokens/s, on 940")
    assert "off 1,180 tokens/s, on 940" in judged(facts, profile)["mtp"].summary
    drafting = LaunchChoice(
        sglang_version="0.5.12", n_draft_tokens=4, mamba_strategy="extra_buffer"
    )
    assert judged(facts, make_profile(launch=drafting))["mtp"].status == "ok"


def test_a_model_that_the_first_server_would_download_is_a_warning() -> None:
    # With the tokenizer comes config.json: a run that has loaded it has that much in the cache.
    for missing in (("config.json",), ("*.safetensors",)):
        absent = make_model(path="org/model", is_local=False, missing=missing)
        assert judged(make_facts(model=absent))["model_files"].status == "warn"
    cut_short = make_model(missing=("model-00001-of-00002.safetensors",))
    assert judged(make_facts(model=cut_short))["model_files"].status == "fail"
