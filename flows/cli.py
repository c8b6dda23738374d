"""The `draftmill` command: each command is thin, speaks plainly, and never shows a traceback.

Exit codes: 0 done; 1 the run ended early, or verification found faults; 2 the user's to fix; 3 the
run waits for a person to look at its canary;
130 and 143 stopped by SIGINT and SIGTERM. `validate` has its own: 0 sound, 2 warnings, 1 failures,
3 the doctor itself failed. With `--json` standard output is one JSON object.
Heavy imports stay inside the commands, so that help answers at once.
"""

from __future__ import annotations

import atexit
import gc
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from flows.command_line.cli_answer import answer
from flows.command_line.cli_arguments import Commands, Config, Json, Prefix, Sets
from flows.command_line.cli_completion import PROGRAM, answer_shells, completion
from flows.command_line.cli_dataset import export, push, report, show
from flows.command_line.cli_run import retry_failures, run
from flows.command_line.cli_servers import servers_app
from flows.command_line.cli_sources import mix, sources_app
from flows.command_line.cli_status import status
from flows.process.command import write_next

app = typer.Typer(
    name=PROGRAM,
    cls=Commands,
    help="Regenerate answers to public prompts with your target model: exact-token training data "
    "for a speculative-decoding drafter.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,  # the command `completion` is for that
)
_ALL = "100%"  # what a bare `--read-data` means, and none at all
config_app = typer.Typer(cls=Commands, help="Look at a configuration.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(servers_app, name="servers")
app.add_typer(sources_app, name="sources")


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder for everything; default: .draftmill/demo/TIME.")
    ] = None,
    json: Json = False,
) -> None:
    """Run the whole road here: no GPU, no account.

    Invented rows, eight simulated servers, a folder as the store.
    """
    from flows.command_line.demo import run_demo
    from flows.command_line.summary import describe_summary, show_place

    answer(
        "run",
        lambda: run_demo(out),
        describe_summary,
        json=json,
        then=lambda found: ("draftmill", "verify", show_place(found["uri"])),
    )


def plan(config: Config, set_: Sets = None, json: Json = False) -> None:
    """Show what a run would do: sources, rows, tokens and keys. Writes nothing to the store."""
    from flows.command_line.preview import describe_preview, preview
    from flows.configuration.load import load_config

    answer(
        "plan",
        lambda: preview(load_config(config, set_ or ()).config),
        describe_preview,
        json=json,
        then=lambda _: write_next("run", config, set_),
    )


def estimate(config: Config, set_: Sets = None, json: Json = False) -> None:
    """Estimate hours, tokens and GPU-hours of a run from its configuration. Starts nothing."""
    from flows.command_line.estimate import describe_estimate
    from flows.command_line.estimate import estimate as estimate_config

    answer(
        "estimate",
        lambda: estimate_config(config, set_ or ()),
        describe_estimate,
        json=json,
        then=lambda _: write_next("run", config, set_),
    )


def tune(
    config: Config,
    set_: Sets = None,
    out: Annotated[
        Path | None, typer.Option(help="Profile to write; default: NAME-tuned.yaml here.")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Longest measurement of a candidate.", min=1)
    ] = 300,
    json: Json = False,
) -> None:
    """Try settings of the servers on the run's own prompts; write the fastest as a profile.

    Exit 0 a profile is written, 1 no candidate served, 2 yours to fix.
    """
    from flows.command_line.launch_tune import describe_tuning, launch_tuning

    answer(
        "tuning",
        lambda: launch_tuning(config, set_ or (), out, seconds),
        describe_tuning,
        json=json,
        then=lambda found: ("draftmill", "run", found["profile"]),
    )


@config_app.command("show")
def config_show(
    config: Config,
    set_: Sets = None,
    origin: Annotated[bool, typer.Option("--origin", help="Tell where each comes from.")] = False,
    json: Json = False,
) -> None:
    """Show every value of a configuration."""
    from flows.configuration.load import describe_values, list_values

    answer(
        "config",
        lambda: list_values(config, set_ or ()),
        lambda values: describe_values(values, origin=origin),
        json=json,
        then=lambda _: write_next("plan", config, set_),
    )


def validate(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG", help="A YAML file or a shipped profile; without one, the box alone."
        ),
    ] = None,
    set_: Sets = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Repair what can be repaired reversibly.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take the newest repair back.")] = False,
    json: Json = False,
) -> None:
    """Judge the box, the servers' environment, the sources and the store.

    Exit 0 sound, 2 warnings, 1 failures, 3 the doctor itself failed.
    """
    from flows.command_line.doctor import run_doctor

    raise typer.Exit(run_doctor(config, set_ or (), apply=apply, undo=undo, json=json))


def verify(
    prefix: Prefix,
    read_data: Annotated[
        str,
        typer.Option(
            "--read-data",
            metavar="[SHARE]",
            help="Share of the objects read in full, such as 5%; of the others only sizes, headers "
            "and footers are looked at.",
        ),
    ] = _ALL,
    json: Json = False,
) -> None:
    """Hold every object that the manifest names against it; repairs nothing.

    Exit 0 whole, 1 faults found, 2 cannot be read.
    """
    from flows.dataset.verdict import describe_verdict, parse_share, verify_prefix

    verdict = answer(
        "verify",
        lambda: verify_prefix(prefix, parse_share(read_data)),
        describe_verdict,
        json=json,
        then=lambda found: (
            ("draftmill", "export", prefix, "--to", "FOLDER")
            if found["ok"]
            else ("draftmill", "repair", prefix)
        ),
    )
    if not verdict["ok"]:
        raise typer.Exit(1)


def repair(prefix: Prefix, json: Json = False) -> None:
    """Make revisions of what verify finds damaged, and the next manifest.

    With the prefix alone: samples, dataset and manifest, from the parts that are there. With the
    configuration also the parts, whose answers are asked for anew.
    Exit 0 whole, 1 faults are left, 2 yours to fix.
    """
    from flows.command_line.repair import describe_repair, repair_run

    found = answer("repair", lambda: repair_run(prefix), describe_repair, json=json)
    if not found["after"]["ok"]:
        raise typer.Exit(1)


def policy(
    config: Config,
    principal: Annotated[
        str | None,
        typer.Option(
            metavar="ARN", help="Whom a bucket policy is about; without: a policy for a role."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show the least that a run needs of its bucket, as an AWS policy with reasons."""
    from flows.command_line.policy import describe_policy, find_policy

    answer("policy", lambda: find_policy(config, principal), describe_policy, json=json)


# In the order in which help lists them: that of the road.
for command in (
    demo,
    validate,
    plan,
    mix,
    estimate,
    tune,
    run,
    status,
    retry_failures,
    verify,
    repair,
    report,
    show,
    export,
    push,
    policy,
    completion,
):
    app.command()(command)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Draftmill."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"draftmill {installed('draftmill')}")
        raise typer.Exit


def _complete(words: list[str]) -> list[str]:
    """Give `--read-data` without a share its own: all."""
    following = [*words, ""][1:] if words else []
    return [
        f"{word}={_ALL}" if word == "--read-data" and not after[:1].isdecimal() else word
        for word, after in zip(words, following, strict=True)
    ]


def main() -> None:
    """Run the command line."""
    # What imports make stays: to look through it for garbage is a quarter of a short command's
    # time, while it runs and once more when it ends.
    gc.set_threshold(50_000, 20, 20)
    atexit.register(gc.freeze)
    answer_shells()
    try:
        sys.exit(app(args=_complete(sys.argv[1:]), prog_name=PROGRAM, standalone_mode=False))
    except TyperException as error:
        error.show()  # type: ignore[attr-defined]  # all that typer raises have it
        if "--json" in sys.argv:
            from flows.process.speak import tell_usage

            tell_usage(str(error))
        # To the caller of `validate`, 2 would mean warnings.
        sys.exit(3 if sys.argv[1:2] == ["validate"] else 2)


if __name__ == "__main__":
    main()
