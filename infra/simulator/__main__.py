"""Start a simulated server: `python -m infra.simulator --model-path MODEL --port PORT`.

Enters: the flags of sglang.launch_server that a fleet is launched with, and --sim-* ones. Leaves: a
server that runs until SIGTERM (it then drains and exits with 0). An unknown flag exits with 2, as
the real parser does. --model-path may be any name: where it is a folder with a tokenizer.json, that
tokenizer is used, else the shipped one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from pathlib import Path

import orjson
from aiohttp import web

from infra.simulator.app import Simulator
from infra.simulator.faults import Faults
from infra.simulator.telemetry import LaunchSettings
from infra.simulator.tokenizer import MODEL_DIR, ChatTokenizer

DRAIN_SECONDS = 4.0


def _parse_faults(text: str) -> Faults:
    try:
        return Faults.from_json(orjson.loads(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parse_port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{port} is no port: 0 to 65535")
    return port


def _parse_positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return number


def build_parser() -> argparse.ArgumentParser:
    """Build the command line."""
    parser = argparse.ArgumentParser(prog="python -m infra.simulator", allow_abbrev=False)
    add = parser.add_argument
    add("--model-path", default=str(MODEL_DIR))
    add("--served-model-name", help="the name in /v1/models; default: the model path")
    add("--host", default="127.0.0.1")
    add("--port", type=_parse_port, default=30000)
    add("--context-length", type=int, default=8192)
    add("--reasoning-parser", choices=["qwen3"])
    add("--tool-call-parser", choices=["qwen3_coder"])
    add("--max-running-requests", type=int)
    add("--random-seed", type=int, default=0)
    add("--enable-metrics", action="store_true")
    add("--api-key")
    add("--sim-version", choices=["0.5.12", "0.5.23"], default="0.5.12")
    add(
        "--sim-time-scale",
        type=_parse_positive,
        default=1.0,
        help="wall seconds per simulated second",
    )
    add("--sim-step-base-ms", type=float, default=29.9, help="decoding step of an empty batch")
    add("--sim-step-slope-ms", type=float, default=0.43, help="added by each running request")
    add("--sim-mean-tokens", type=_parse_positive, default=600.0, help="mean length of an answer")
    add("--sim-sigma", type=float, default=0.7, help="sigma of the lognormal lengths")
    add("--sim-faults", type=_parse_faults, default=Faults(), help="JSON, see faults.py")
    add("--sim-luck", type=int, default=0, help="seed of which requests error_rate, drop_rate hit")
    add("--sim-request-log", type=Path, help="JSONL file that gets a line a generation")
    add("--sim-start-delay", type=float, default=0.0, help="seconds before the port opens")
    return parser


def _read_settings(arguments: argparse.Namespace) -> LaunchSettings:
    return LaunchSettings(
        model_path=arguments.model_path,
        served_model_name=arguments.served_model_name or arguments.model_path,
        host=arguments.host,
        port=arguments.port,
        context_length=arguments.context_length,
        max_running_requests=arguments.max_running_requests,
        random_seed=arguments.random_seed,
        reasoning_parser=arguments.reasoning_parser,
        tool_call_parser=arguments.tool_call_parser,
        enable_metrics=arguments.enable_metrics,
        api_key=arguments.api_key,
        version=arguments.sim_version,
        time_scale=arguments.sim_time_scale,
        step_base_seconds=arguments.sim_step_base_ms / 1000,
        step_slope_seconds=arguments.sim_step_slope_ms / 1000,
        mean_tokens=arguments.sim_mean_tokens,
        sigma=arguments.sim_sigma,
        luck=arguments.sim_luck,
        request_log=arguments.sim_request_log,
        start_delay_seconds=arguments.sim_start_delay,
    )


async def serve(settings: LaunchSettings, tokenizer: ChatTokenizer, faults: Faults) -> None:
    """Serve until SIGTERM or SIGINT, then close the port, drain and return."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await asyncio.sleep(settings.start_delay_seconds)
    simulator = Simulator(settings, tokenizer, faults)
    runner = web.ServerRunner(
        web.Server(simulator.handle, access_log=None, handler_cancellation=True),
        shutdown_timeout=0.5,
    )
    await runner.setup()
    site = web.TCPSite(runner, settings.host, settings.port, backlog=1024)
    await site.start()
    sys.stderr.write(f"simulated sglang {settings.version} on port {settings.port}\n")
    # Nothing here makes cycles in number; collecting less often halves the cost of a request.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    await stopped.wait()
    await site.stop()
    await simulator.drain(DRAIN_SECONDS)
    await runner.cleanup()


def main() -> None:
    """Run the command line."""
    arguments = build_parser().parse_args()
    folder = Path(arguments.model_path)
    has_tokenizer = (folder / "tokenizer.json").is_file()
    try:
        tokenizer = ChatTokenizer(folder if has_tokenizer else MODEL_DIR)
    except (OSError, ValueError) as error:
        sys.exit(f"--model-path {folder}: {error}; give a folder like infra/simulator/model")
    settings = _read_settings(arguments)
    try:
        asyncio.run(serve(settings, tokenizer, arguments.sim_faults))
    except OSError as error:
        sys.exit(f"cannot serve on {settings.host}:{settings.port}: {error}; choose another --port")


if __name__ == "__main__":
    main()
