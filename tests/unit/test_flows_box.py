"""What must hold on a box follows from the configuration, and from what is our own there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flows.configuration.load import load_config
from flows.stages.box import profile_of, read_mtp_measured, read_own_fleet
from tasks.serving.command import FleetSpec
from tasks.serving.process import start_time
from tasks.serving.state import FleetState, ServerState, open_fleet_dir, write_state
from tasks.settings import Settings

GONE = 2**22 + 1


def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


def test_the_field_box_needs_its_weights_and_a_full_cache(tmp_path: Path) -> None:
    sets = ["store.uri=file:///store/run", f"serving.python={sys.executable}"]
    config = load_config("rtx-pro-6000-8x", sets).config
    profile = profile_of(config, settings(tmp_path), ("draftmill", "validate", "x"))
    assert (profile.needs_gpu, profile.capability) == (True, (12, 0))
    assert (profile.gpus, profile.ports) == (tuple(range(8)), tuple(range(30000, 30008)))
    assert profile.weights_gib == pytest.approx(50.3, abs=0.05)
    # 72 requests of some 3,000 tokens, 64 KiB each.
    assert profile.kv_gib == pytest.approx(13.2, abs=0.2)
    shared = profile_of(
        load_config("rtx-pro-6000-8x", [*sets, "serving.tp_size=2", "serving.n_servers=4"]).config,
        settings(tmp_path),
    )
    assert shared.kv_gib == pytest.approx(profile.kv_gib / 2), "a server's cards share its cache"
    assert profile.cuda_dir == tmp_path / "cuda"
    assert profile.launch is not None
    assert profile.launch.attention_backend == "flashinfer"
    attached = ["serving.urls=[http://10.0.0.5:30000]", "store.uri=file:///store/run"]
    attached.append("sources={a: {path: /a.jsonl, mapping: {messages: m}}}")
    elsewhere = profile_of(load_config("attach", attached).config, settings(tmp_path))
    assert (elsewhere.needs_gpu, elsewhere.ports, elsewhere.gpus) == (False, (), ())
    assert "attach" in elsewhere.no_gpu_reason


def test_only_living_processes_of_our_fleet_are_ours(tmp_path: Path) -> None:
    assert read_own_fleet(settings(tmp_path)) == ((), ())
    config = load_config(
        "demo", ["store.uri=file:///s/r", "sources={a: {path: /a, mapping: {messages: m}}}"]
    ).config
    spec = FleetSpec(serving=config.serving, model=config.model, with_api_key=False)
    here, began = os.getpid(), start_time(os.getpid()) or 0.0
    common = {"log": "x", "status": "ready"}
    alive = ServerState(
        index=0,
        base_url="http://127.0.0.1:30000",
        pid=here,
        started_at=began,
        family=((GONE, 1.0),),
        **common,
    )
    # Another process has its number now: the start time tells.
    recycled = ServerState(
        index=1, base_url="http://127.0.0.1:30001", pid=here, started_at=began - 99, **common
    )
    state = FleetState(
        spec=spec,
        spec_sha256=spec.sha256(),
        supervisor_pid=here,
        supervisor_started_at=began,
        status="running",
        servers=(alive, recycled),
    )
    open_fleet_dir(tmp_path / "fleet")
    write_state(tmp_path / "fleet", state)
    assert read_own_fleet(settings(tmp_path)) == ((30000,), (here, here))
    lost = state.model_copy(update={"supervisor_started_at": began - 99})
    write_state(tmp_path / "fleet", lost)
    assert read_own_fleet(settings(tmp_path)) == ((), ())


def test_what_the_tuner_measured_of_mtp_is_read_from_its_profile(tmp_path: Path) -> None:
    profile = tmp_path / "run.yaml"
    assert read_mtp_measured(profile) == ""
    profile.write_text(
        "# Tuned by measurement: 8 candidates\n#\n"
        "# rank 1 · candidate no_buffer, no MTP · tokens/s 1,180 · ± 0.9% · running 72\n"
        "# rank 2 · candidate extra_buffer, MTP · tokens/s 940 · ± 0.8% · running 37\n"
        "serving: {n_servers: 8}\n"
    )
    assert read_mtp_measured(profile) == (
        "rank 1 · candidate no_buffer, no MTP · tokens/s 1,180; "
        "rank 2 · candidate extra_buffer, MTP · tokens/s 940"
    )
