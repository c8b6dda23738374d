"""The HTTP server: routes, faults, the request log.

Enters: HTTP requests. Leaves: answers as a real SGLang of the chosen version gives them. It uses
aiohttp's low-level server: without router and middlewares a request costs about half.
/health answers at once, where a real server takes about a second.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any, TextIO

import orjson
from aiohttp import web

from infra.simulator import parsing, telemetry
from infra.simulator.answers import Answer, Writer, hash_prompt
from infra.simulator.engine import Engine, Job
from infra.simulator.faults import Faults
from infra.simulator.fields import Refusal, parse_body, refuse
from infra.simulator.protocol import GenerationRequest, RequestReader
from infra.simulator.responses import Shapes
from infra.simulator.telemetry import Counters, LaunchSettings
from infra.simulator.tokenizer import ChatTokenizer

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
_SERVER = {"Server": "uvicorn"}
_JSON = {**_SERVER, "Content-Type": "application/json"}
_OPEN_PATHS = ("/health", "/health_generate", "/metrics")
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or "
    "waiting requests, the operation will not be performed.)\n"
)


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, headers=_JSON)


def _text(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, headers=_SERVER)


class Simulator:
    """One simulated server; `handle` is its aiohttp handler. Create it inside the event loop."""

    def __init__(self, settings: LaunchSettings, tokenizer: ChatTokenizer, faults: Faults) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._engine = Engine(
            max_running=settings.slots,
            step_base_seconds=settings.step_base_seconds,
            step_slope_seconds=settings.step_slope_seconds,
            time_scale=settings.time_scale,
        )
        self._writer = Writer(
            tokenizer,
            seed=settings.random_seed,
            mean_tokens=settings.mean_tokens,
            sigma=settings.sigma,
        )
        self._reader = RequestReader(tokenizer, settings.version, settings.context_length)
        self._shapes = Shapes(
            tokenizer,
            settings.version,
            parses_reasoning=settings.reasoning_parser is not None,
            parses_tool_calls=settings.tool_call_parser is not None,
        )
        self._counters = Counters()
        self._luck = random.Random(settings.luck)  # noqa: S311
        self._log: TextIO | None = None
        if settings.request_log is not None:
            self._log = settings.request_log.open("a", encoding="utf-8")
        self._n_until_death: int | None = None
        self._set_faults(faults)
        self._routes = self._make_routes()

    def _make_routes(self) -> dict[str, dict[str, Handler]]:
        settings, engine, counters = self._settings, self._engine, self._counters

        def get(make: Callable[[], Any]) -> dict[str, Handler]:
            async def answer(_: web.BaseRequest) -> web.Response:
                return _json(make())

            return {"GET": answer}

        routes: dict[str, dict[str, Handler]] = {
            "/health": {"GET": self._health},
            "/health_generate": {"GET": self._health},
            "/model_info": get(lambda: telemetry.model_info(settings)),
            "/get_model_info": get(lambda: telemetry.model_info(settings)),
            "/server_info": get(lambda: telemetry.server_info(settings, engine)),
            "/get_server_info": get(lambda: telemetry.server_info(settings, engine)),
            "/v1/models": get(lambda: telemetry.models(settings, counters)),
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._complete},
            "/generate": {"POST": self._generate_native, "PUT": self._generate_native},
            "/tokenize": {"POST": self._tokenize},
            "/v1/tokenize": {"POST": self._tokenize},
            "/separate_reasoning": {"POST": self._separate},
            "/parse_function_call": {"POST": self._parse_calls},
            "/abort_request": {"POST": self._abort},
            "/flush_cache": {"POST": self._flush, "GET": self._flush},
            "/simulator/stats": get(lambda: telemetry.stats(engine, counters)),
            "/simulator/faults": {"GET": self._show_faults, "POST": self._change_faults},
        }
        if settings.enable_metrics:
            routes["/metrics"] = {"GET": self._metrics}
        if settings.version == "0.5.12":
            routes["/get_load"] = get(lambda: telemetry.old_load(engine))
            routes["/v1/loads"] = {"GET": self._fail_loads}
        else:
            routes["/v1/loads"] = get(lambda: telemetry.loads(settings, engine))
        return routes

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one HTTP request."""
        path = request.path
        methods = self._routes.get(path)
        if methods is None:
            return _json({"detail": "Not Found"}, 404)
        handler = methods.get(request.method)
        if handler is None:
            return _json({"detail": "Method Not Allowed"}, 405)
        key = self._settings.api_key
        sent = request.headers.get("Authorization")
        if key is not None and path not in _OPEN_PATHS and sent != f"Bearer {key}":
            return _json({"error": "Unauthorized"}, 401)
        self._counters.requests[path] += 1
        self._counters.active[path, request.method] += 1
        try:
            return await handler(request)
        except Refusal as refusal:
            self._counters.outcomes["refused"] += 1
            return _json(refusal.body, refusal.status)
        finally:
            self._counters.active[path, request.method] -= 1

    async def drain(self, limit_seconds: float) -> None:
        """Wait until nothing is in flight, at most `limit_seconds`."""
        await self._engine.wait_idle(limit_seconds)

    async def _health(self, _: web.BaseRequest) -> web.Response:
        return web.Response(headers=_SERVER)

    async def _fail_loads(self, _: web.BaseRequest) -> web.Response:
        # As recorded: 0.5.12 has the route, and it fails.
        return _text("Internal Server Error", 500)

    async def _metrics(self, _: web.BaseRequest) -> web.Response:
        text = telemetry.metrics(self._settings, self._engine, self._counters)
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(body=text.encode(), headers={**_SERVER, "Content-Type": kind})

    async def _tokenize(self, request: web.BaseRequest) -> web.Response:
        prompt = parse_body(await request.read()).get("prompt")
        if not isinstance(prompt, str):
            raise refuse("prompt must be a string.")
        ids = self._tokenizer.encode(prompt)
        limit = self._settings.context_length
        return _json({"tokens": ids, "count": len(ids), "max_model_len": limit})

    async def _separate(self, request: web.BaseRequest) -> web.Response:
        body = parse_body(await request.read())
        return _json(parsing.separate_reasoning(body, self._settings.version))

    async def _parse_calls(self, request: web.BaseRequest) -> web.Response:
        return _json(parsing.parse_function_call(parse_body(await request.read())))

    async def _abort(self, request: web.BaseRequest) -> web.Response:
        body = parse_body(await request.read())
        if body.get("abort_all"):
            self._engine.abort_all()
        elif isinstance(body.get("rid"), str) and body["rid"]:
            self._engine.abort(body["rid"])
        return web.Response(headers=_SERVER)

    async def _flush(self, _: web.BaseRequest) -> web.Response:
        if self._engine.n_in_flight:
            return _text("Flush cache failed.\n", 400)
        return _text(_FLUSHED)

    async def _show_faults(self, _: web.BaseRequest) -> web.Response:
        return _json(self._faults.to_json())

    async def _change_faults(self, request: web.BaseRequest) -> web.Response:
        try:
            self._set_faults(Faults.from_json(parse_body(await request.read())))
        except ValueError as error:
            raise refuse(str(error)) from error
        return _json(self._faults.to_json())

    def _set_faults(self, faults: Faults) -> None:
        self._faults = faults
        self._engine.set_speed(slowness=faults.slow, hung=faults.hang)
        self._n_until_death = faults.death_after_requests
        if faults.death:
            self._die()

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        body = parse_body(await request.read())
        self._refuse_stream(body)
        asked = self._reader.read_chat(body, self._settings.served_model_name)
        return await self._generate(
            request, asked, lambda answers, _: self._shapes.chat(asked, answers)
        )

    async def _complete(self, request: web.BaseRequest) -> web.StreamResponse:
        body = parse_body(await request.read())
        self._refuse_stream(body)
        asked = self._reader.read_completion(body, self._settings.served_model_name)
        return await self._generate(
            request, asked, lambda answers, _: self._shapes.completion(asked, answers)
        )

    async def _generate_native(self, request: web.BaseRequest) -> web.StreamResponse:
        body = parse_body(await request.read())
        self._refuse_stream(body)
        asked = self._reader.read_native(body)
        return await self._generate(
            request, asked, lambda answers, jobs: self._shapes.native(asked, answers, jobs)
        )

    def _refuse_stream(self, body: dict[str, Any]) -> None:
        if body.get("stream"):
            raise refuse("The simulator does not stream; send stream=false.")

    async def _generate(
        self,
        request: web.BaseRequest,
        asked: GenerationRequest,
        shape: Callable[[list[Answer], list[Job]], bytes],
    ) -> web.StreamResponse:
        faults = self._faults
        if faults.error_rate and self._luck.random() < faults.error_rate:
            self._record(request.path, asked, 0, "error_500")
            raise refuse("Internal server error (simulated)", "InternalServerError", 500)
        answers = [
            self._writer.write(asked.prompt_ids, asked.limits, faults, sample)
            for sample in range(asked.n_samples)
        ]
        jobs = [self._engine.submit(asked.rid, len(answer.ids)) for answer in answers]
        try:
            counts = [await job.ended for job in jobs]
        except asyncio.CancelledError:
            # The client has gone: a real server notices, and frees the slot.
            self._engine.cancel(jobs)
            self._record(request.path, asked, 0, "disconnected")
            raise
        for index, job in enumerate(jobs):
            if job.aborted:
                answers[index] = self._writer.cut(answers[index], counts[index], asked.limits)
        self._count_down_to_death()
        n_tokens = sum(counts)
        if faults.drop_rate and self._luck.random() < faults.drop_rate:
            self._record(request.path, asked, n_tokens, "dropped")
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        aborted = any(job.aborted for job in jobs)
        self._record(request.path, asked, n_tokens, "aborted" if aborted else "completed")
        return web.Response(body=shape(answers, jobs), headers=_JSON)

    def _count_down_to_death(self) -> None:
        if self._n_until_death is not None:
            self._n_until_death -= 1
            if self._n_until_death <= 0:
                self._die()

    def _record(self, route: str, asked: GenerationRequest, n_tokens: int, outcome: str) -> None:
        self._counters.outcomes[outcome] += 1
        self._counters.n_prompt_tokens += len(asked.prompt_ids)
        self._counters.n_output_tokens += n_tokens
        if self._log is not None:
            line = {
                "time": time.time(),
                "rid": asked.rid,
                "route": route,
                "prompt_hash": hash_prompt(asked.prompt_ids),
                "n_tokens": n_tokens,
                "outcome": outcome,
            }
            self._log.write(orjson.dumps(line).decode() + "\n")
            self._log.flush()
