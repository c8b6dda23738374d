"""Settings to command lines: keyed by version, safe, and refused where they cannot work."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tasks.chat.config import ModelConfig
from tasks.errors import ConfigError
from tasks.serving.command import FleetSpec, ServerCommand, build_commands
from tasks.serving.config import ServingConfig
from tasks.serving.launchable import LaunchFacts

MODEL = ModelConfig(path="org/model", revision="abc", served_name="model")


def real(**changes: Any) -> ServingConfig:
    fields: dict[str, Any] = {"engine": "sglang", "python": "/servers/bin/python", "n_servers": 1}
    return ServingConfig.model_validate(fields | changes)


def build(config: ServingConfig, model: ModelConfig = MODEL, **kwargs: Any) -> list[ServerCommand]:
    ports = range(config.base_port, config.base_port + config.n_servers)
    return build_commands(config, model, list(ports), **kwargs)


def flag(command: ServerCommand, name: str) -> str | None:
    return command.argv[command.argv.index(name) + 1] if name in command.argv else None


def refusals(config: ServingConfig, model: ModelConfig = MODEL, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        build(config, model, **kwargs)
    return str(refused.value)


def test_the_fleet_of_eight_cards_gets_a_port_and_a_card_each() -> None:
    config = real(
        n_servers=8,
        attention_backend="flashinfer",
        mamba_strategy="no_buffer",
        max_running_requests=72,
        extra_flags=("--log-level", "warning"),
    )
    commands = build(config)
    assert [command.env["CUDA_VISIBLE_DEVICES"] for command in commands] == list("01234567")
    assert commands[7].base_url == "http://127.0.0.1:30007"
    assert commands[0].argv == (
        *("/servers/bin/python", "-m", "sglang.launch_server"),
        *("--model-path", "org/model", "--served-model-name", "model", "--host", "127.0.0.1"),
        *("--context-length", "8192", "--enable-metrics"),
        *("--reasoning-parser", "qwen3", "--tool-call-parser", "qwen3_coder"),
        *("--max-running-requests", "72", "--port", "30000"),
        *("--chunked-prefill-size", "4096", "--mem-fraction-static", "0.85", "--dtype", "auto"),
        *("--revision", "abc", "--attention-backend", "flashinfer"),
        *("--mamba-scheduler-strategy", "no_buffer", "--log-level", "warning"),
    )


def test_cards_can_be_chosen() -> None:
    commands = build(real(n_servers=2, gpus=(6, 3)))
    assert [command.env["CUDA_VISIBLE_DEVICES"] for command in commands] == ["6", "3"]


def test_cards_count_in_the_drivers_order_so_that_memory_is_watched_on_the_right_ones() -> None:
    assert build(real())[0].env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_server_split_by_tensor_parallelism_has_a_group_of_cards() -> None:
    commands = build(real(n_servers=2, tp_size=4))
    assert [each.env["CUDA_VISIBLE_DEVICES"] for each in commands] == ["0,1,2,3", "4,5,6,7"]
    assert [flag(each, "--tp-size") for each in commands] == ["4", "4"]
    chosen = build(real(n_servers=2, tp_size=2, gpus=(6, 7, 0, 1)))
    assert [each.env["CUDA_VISIBLE_DEVICES"] for each in chosen] == ["6,7", "0,1"]
    with pytest.raises(ValueError, match="n_servers x tp_size"):
        real(n_servers=2, tp_size=2, gpus=(0, 1))
    with pytest.raises(ValueError, match="names a GPU twice"):
        real(n_servers=2, gpus=(3, 3))


def test_tensor_parallelism_needs_cards_that_nvlink_joins() -> None:
    split = real(tp_size=2)
    assert "no NVLink joins" in refusals(split, facts=LaunchFacts(nvlink=False))
    assert build(split, facts=LaunchFacts(nvlink=True))
    assert build(split), "where it is not known, the server will tell"


def test_flashinfer_decodes_gdn_layers_on_blackwell_only_with_bfloat16_states() -> None:
    flashinfer = {"linear_attn_decode_backend": "flashinfer"}
    blackwell = LaunchFacts(capability=(12, 0), hybrid=True)
    assert "needs bfloat16 states on SM120" in refusals(real(**flashinfer), facts=blackwell)
    [command] = build(real(**flashinfer, mamba_ssm_dtype="bfloat16"), facts=blackwell)
    assert flag(command, "--linear-attn-decode-backend") == "flashinfer"
    assert flag(command, "--mamba-ssm-dtype") == "bfloat16"
    assert build(real(**flashinfer), facts=LaunchFacts(capability=(9, 0), hybrid=True))


@pytest.mark.parametrize(
    ("version", "name"),
    [("0.5.12", "--mamba-scheduler-strategy"), ("0.5.23", "--mamba-radix-cache-strategy")],
)
def test_the_mamba_flag_follows_the_version(version: str, name: str) -> None:
    [command] = build(real(sglang_version=version, mamba_strategy="extra_buffer"))
    assert flag(command, name) == "extra_buffer"
    assert sum(argument.startswith("--mamba") for argument in command.argv) == 1


def test_extra_buffer_lazy_is_of_the_new_version_only() -> None:
    lazy = {"mamba_strategy": "extra_buffer_lazy"}
    assert build(real(sglang_version="0.5.23", **lazy))
    assert "unknown to sglang 0.5.12" in refusals(real(sglang_version="0.5.12", **lazy))


def test_speculative_flags_are_written_out() -> None:
    [command] = build(real(speculative={"algorithm": "EAGLE"}))
    assert flag(command, "--speculative-algorithm") == "EAGLE"
    assert flag(command, "--speculative-num-steps") == "3"
    assert flag(command, "--speculative-eagle-topk") == "1"
    assert flag(command, "--speculative-num-draft-tokens") == "4"


def test_the_simulator_is_launched_by_this_python_with_its_own_flags() -> None:
    config = ServingConfig.model_validate(
        {
            "engine": "simulator",
            "sglang_version": "0.5.23",
            "n_servers": 1,
            "simulator": {"time_scale": 0.5, "faults": {"error_rate": 0.1}},
        }
    )
    [command] = build(config)
    assert command.argv[:3] == (sys.executable, "-m", "infra.simulator")
    assert flag(command, "--sim-version") == "0.5.23"
    assert flag(command, "--sim-time-scale") == "0.5"
    assert flag(command, "--sim-faults") == '{"error_rate":0.1}'
    assert "--mem-fraction-static" not in command.argv


@pytest.mark.parametrize(
    ("config", "model", "path"),
    [
        (real(host="--trust-remote-code"), MODEL, "serving.host"),
        (real(attention_backend="-x"), MODEL, "serving.attention_backend"),
        (real(python="-c"), MODEL, "serving.python"),
        (real(), ModelConfig(path="m", served_name="--port"), "model.served_name"),
        (real(), ModelConfig(path="m", tokenizer="--host=0.0.0.0"), "model.tokenizer"),
        (real(), ModelConfig(path="m", revision="-r"), "model.revision"),
        (real(), ModelConfig(path="m", quantization="--fp8"), "model.quantization"),
    ],
)
def test_a_value_that_would_be_read_as_a_flag_is_refused(
    config: ServingConfig, model: ModelConfig, path: str
) -> None:
    assert f"{path}: " in refusals(config, model)


def test_a_value_with_shell_characters_stays_one_argument() -> None:
    model = ModelConfig(path="model; touch x && $(id)")
    [command] = build(real(), model)
    assert flag(command, "--model-path") == "model; touch x && $(id)"


@pytest.mark.parametrize(
    "extra",
    ["--host", "--host=0.0.0.0", "--ho", "--api-key", "--trust-remote-code", "--trust", "--conf"],
)
def test_extra_flags_cannot_undo_a_safeguard_not_even_abbreviated(extra: str) -> None:
    assert "serving.extra_flags" in refusals(real(extra_flags=(extra, "x")))


def test_an_address_of_the_network_needs_a_key() -> None:
    assert "DRAFTMILL_SERVER_API_KEY" in refusals(real(host="0.0.0.0"))  # noqa: S104
    [command] = build(real(host="0.0.0.0"), api_key_file="/fleet/key.yaml")  # noqa: S104
    assert flag(command, "--config") == "/fleet/key.yaml"
    assert "--api-key" not in command.argv
    simulated = ServingConfig(engine="simulator", n_servers=1, host="0.0.0.0")  # noqa: S104
    assert "the simulator has no key" in refusals(simulated, api_key_file="/fleet/key.yaml")
    assert build(real(host="::1"))[0].base_url == "http://[::1]:30000"


def test_what_fails_inside_the_server_is_refused_before_the_launch() -> None:
    message = refusals(real(attention_backend="fa4"), facts=LaunchFacts(capability=(12, 0)))
    assert "fa4 has no kernels for SM120" in message
    speculative = real(speculative={"algorithm": "NEXTN"})
    assert "speculative decoding does not go with" in refusals(
        speculative, facts=LaunchFacts(hybrid=True)
    )
    assert build(speculative, facts=LaunchFacts(hybrid=False))
    extra = real(mamba_strategy="extra_buffer", disable_radix_cache=True)
    assert "lives in the radix cache" in refusals(extra)


def test_a_port_that_leaves_no_room_for_sglangs_second_one_is_refused() -> None:
    assert "port 55536 is above 55535" in refusals(real(n_servers=2, base_port=55_535))
    assert build(real(n_servers=1, base_port=55_535))


def test_all_faults_are_listed_at_once() -> None:
    config = real(host="10.0.0.1", extra_flags=("--port", "1"), mamba_strategy="extra_buffer_lazy")
    with pytest.raises(ConfigError) as refused:
        build(config)
    assert len(refused.value.issues) == 3


def test_servers_are_told_of_the_composed_cuda_home_and_the_simulator_is_not() -> None:
    toolkit = {"CUDA_HOME": "/home/cuda/homes/a1", "TVM_FFI_GPU_BACKEND": "cuda"}
    for command in build(real(n_servers=2), toolkit_env=toolkit):
        assert toolkit.items() <= command.env.items()
        assert command.env["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    simulated = ServingConfig(engine="simulator", n_servers=1)
    assert "CUDA_HOME" not in build(simulated, toolkit_env=toolkit)[0].env


def test_a_port_a_server_is_needed() -> None:
    with pytest.raises(ValueError, match="2 servers need as many ports"):
        build_commands(real(n_servers=2), MODEL, [30000])


def spec(**changes: Any) -> FleetSpec:
    return FleetSpec(serving=real(**changes), model=MODEL, with_api_key=False)


def test_fleets_are_told_apart_by_what_changes_their_servers() -> None:
    assert spec().sha256() == spec(lease_seconds=60, keep=True, max_restarts=0).sha256()
    watched = {"stall_seconds": 60, "outlook": {"weights_gb": 54}}
    assert spec().sha256() == spec(**watched).sha256()
    assert spec().sha256() == spec(simulator={"time_scale": 0.5}).sha256()
    other = spec(mem_fraction_static=0.8, speculative={"algorithm": "NEXTN"})
    assert spec().sha256() != other.sha256()
    assert "serving.mem_fraction_static: 0.85 -> 0.8" in spec().differences(other)
    assert "serving.speculative.algorithm: None -> 'NEXTN'" in spec().differences(other)
