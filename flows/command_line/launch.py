"""Runs the `expand` flow from the command line, on the embedded Prefect or the user's server."""

from __future__ import annotations

from typing import Any, Literal

from httpx import HTTPError

from flows.config import ExpansionConfig
from flows.pages.narrate import ConsoleNarrator, narrator
from flows.process.embedded import prepare_prefect
from flows.process.signals import run_until_signal
from flows.process.speak import ERR
from tasks.errors import UserError
from tasks.settings import read_settings

FlowName = Literal["expand", "rebuild", "retry-failures"]


def launch_expansion(
    config: ExpansionConfig,
    *,
    flow: FlowName = "expand",
    source: str | None = None,
    revision: str | None = None,
) -> dict[str, Any]:
    """Run a flow to its end and give its summary; over one source alone where one is named.

    Raises:
        DraftmillError: Why the run ended early.
        KeyboardInterrupt: SIGINT or SIGTERM came, and the flow has let go what it held.
    """
    embedded = prepare_prefect(read_settings())
    console = ConsoleNarrator(ERR)
    console.stage("prefect", "embedded, starting" if embedded else "your server")
    narrator.set(console)
    with console.live():
        return run_until_signal(lambda: _run(config, flow, source, revision))


async def _run(
    config: ExpansionConfig, flow: FlowName, source: str | None, revision: str | None
) -> dict[str, Any]:
    await check_server()
    return await run_expansion(config, flow=flow, source=source, revision=revision)


async def check_server() -> None:
    """Ask the Prefect server, embedded or the user's own, whether it takes our calls.

    Raises:
        UserError: It does not answer, is another version, or refuses us.
    """
    from prefect.client.orchestration import get_client  # noqa: PLC0415

    try:
        async with get_client() as client:
            await client.raise_for_api_version_mismatch()
            await client.read_flow_runs(limit=1)
    # RuntimeError is how Prefect says that there is no connection, or another version.
    except (RuntimeError, HTTPError) as error:
        # A call that waited for too long says nothing but its type.
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"the Prefect server cannot be used: {said}",
            where="Prefect",
            remedy="Start it (`prefect server start`), correct PREFECT_API_URL and "
            "PREFECT_API_AUTH_STRING, or unset PREFECT_API_URL for an embedded one; where the "
            "embedded one is slow, set PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.",
        ) from error


async def run_expansion(
    config: ExpansionConfig,
    *,
    flow: FlowName = "expand",
    source: str | None = None,
    revision: str | None = None,
) -> dict[str, Any]:
    """Run a flow with Prefect as it is set up now; give the summary or raise why not."""
    # A rebuilding knows of no source: it takes up what stands at the prefix.
    of_source = {} if flow == "rebuild" else {"source": source, "revision": revision}
    state = await _import_flow(flow)(config, **of_source, return_state=True)
    result = await state.aresult(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    return dict(result)


def _import_flow(name: FlowName) -> Any:
    """Import a flow, only now: Prefect reads its settings when it is imported.

    And this one alone: each makes the schema of its form, a third of a second.
    """
    match name:
        case "expand":
            from flows.expand import expand  # noqa: PLC0415

            return expand
        case "rebuild":
            from flows.rebuild import rebuild  # noqa: PLC0415

            return rebuild
        case "retry-failures":
            from flows.retry_failures import retry_failures  # noqa: PLC0415

            return retry_failures
