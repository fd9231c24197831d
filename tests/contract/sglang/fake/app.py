"""The HTTP face of the fake server."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from aiohttp import web

from tests.contract.sglang.fake.job import Job, joined
from tests.contract.sglang.fake.scheduler import Scheduler

SAMPLING = {
    "max_new_tokens",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_new_tokens",
    "n",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "stream_interval",
    "logit_bias",
    "sampling_seed",
    "custom_params",
    "beam_width",
    "watermark",
    "choice",
}
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or "
    "waiting requests, the operation will not be performed.)\n"
)
OPEN = ("/health", "/ready", "/metrics")
FOR_ALL = ("/generate", "/server_info", "/model_info", "/v1/loads")
_WAIT_S = 0.05


class App:
    """Routes; what they tell is what SGLang 0.5.23 tells."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        context: int,
        info: dict[str, Any],
        api_key: str = "",
        admin_key: str = "",
    ) -> None:
        self.scheduler = scheduler
        self._context = context
        self._info = info
        self._keys = api_key, admin_key or api_key
        self.seen: list[tuple[str, dict[str, Any]]] = []
        """Every call with its body, for tests to look at."""
        self.web = web.Application(middlewares=[self._guarded])
        self.web.add_routes(
            [
                web.post("/generate", self._generate),
                web.post("/abort_request", self._abort),
                web.post("/pause_generation", self._pause),
                web.post("/continue_generation", self._continue),
                web.post("/flush_cache", self._flush),
                web.post("/update_weights_from_disk", self._update),
                web.post("/update_weight_version", self._rename),
                web.post("/update_weights_from_tensor", self._from_tensor),
                web.post("/weights_checker", self._checker),
                web.get("/ready", self._ready),
                web.get("/model_info", self._model_info),
                web.get("/server_info", self._server_info),
                web.get("/v1/loads", self._loads),
            ]
        )
        self.web.cleanup_ctx.append(self._generating)

    async def _generating(self, app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self.scheduler.run())
        task.add_done_callback(lambda done: done.cancelled() or self.scheduler.die())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    @web.middleware
    async def _guarded(self, request: web.Request, handler) -> web.StreamResponse:
        key = self._keys[0 if request.path in FOR_ALL else 1]
        known = request.headers.get("Authorization") == f"Bearer {key}"
        if key and not known and not request.path.startswith(OPEN):
            return web.json_response({"error": "Unauthorized"}, status=401)
        if (says := self.scheduler.quirks.says) is not None:
            return web.Response(status=says[0], text=says[1])
        body = await request.json() if request.can_read_body else {}
        self.seen.append((request.path, body))
        return await handler(request, body)

    # -- generating

    async def _generate(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        sampling = {"top_k": -1} | (body.get("sampling_params") or {})
        if unknown := sampling.keys() - SAMPLING:
            return web.json_response(
                {"error": f"unknown field `{unknown.pop()}`, expected one of ..."}, status=400
            )
        ids = body.get("input_ids")
        if not all(isinstance(one, int) for one in ids):
            error = {"object": "error", "message": "1 validation error", "type": "Bad Request"}
            return web.json_response(error | {"param": None, "code": 400}, status=400)
        job = Job(
            rid=body.get("rid") or uuid.uuid4().hex,
            prompt=ids,
            sampling=sampling,
            stream=bool(body.get("stream")),
            wants_logprob=bool(body.get("return_logprob")),
            wants_mask=bool(body.get("return_sampling_mask")),
            num_top=body.get("top_logprobs_num", 0),
        )
        return await (self._stream(request, job) if job.stream else self._whole(job))

    def _check(self, job: Job) -> None:
        if not job.prompt:
            raise ValueError("input_ids cannot be empty.")
        if minimum := job.sampling.get("min_new_tokens"):
            raise ValueError(
                f"min_new_tokens={minimum} is unavailable when skip_tokenizer_init=True (requires "
                "tokenizer for eos_token_id)."
            )
        total = len(job.prompt) + job.sampling.get("max_new_tokens", 128)
        if total > self._context or len(job.prompt) > self._context - 6:
            raise ValueError(
                f"Requested token count exceeds the model's maximum context length of "
                f"{self._context} tokens."
            )

    async def _whole(self, job: Job) -> web.Response:
        try:
            self._check(job)
            await self.scheduler.submit(job)
        except ValueError as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        await job.ready.wait()
        finish = job.events[-1]["meta_info"]["finish_reason"]
        if finish.get("status_code"):
            return web.json_response({"error": finish["message"]}, status=finish["status_code"])
        return web.json_response(job.events[-1])

    async def _stream(self, request: web.Request, job: Job) -> web.StreamResponse:
        """The answer begins at once; a refusal is its first event."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        try:
            self._check(job)
            await self.scheduler.submit(job)
            async for event in self._events(request, job):
                await response.write(f"data: {json.dumps(event)}\n\n".encode())
        except ValueError as error:
            told = {"message": str(error), "type": "invalid_request_error", "code": 400}
            refusal = json.dumps({"error": told | {"retryable": False}})
            await response.write(f"data: {refusal}\n\n".encode())
        except (ConnectionError, asyncio.CancelledError):
            self.scheduler.abort(job.rid)
            raise
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _events(self, request: web.Request, job: Job) -> AsyncIterator[dict[str, Any]]:
        quirks, count, finished = self.scheduler.quirks, 0, False
        while not finished:
            try:
                await asyncio.wait_for(job.ready.wait(), _WAIT_S)
            except TimeoutError:
                if request.transport is None or request.transport.is_closing():
                    raise ConnectionResetError("nobody listens") from None
                continue
            job.ready.clear()
            events, job.events = job.events, []
            event = joined(events, delta=self.scheduler.delta)
            finished = event["meta_info"]["finish_reason"] is not None
            yield event
            count += 1
            if quirks.broken_streams and count > 3:
                quirks.broken_streams -= 1
                request.transport.abort()

    # -- control

    async def _abort(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        everything = bool(body.get("abort_all"))
        if everything or body.get("rid"):
            self.scheduler.abort(body.get("rid", ""), everything=everything)
        return web.Response()

    async def _pause(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        mode = body.get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            error = {"object": "error", "message": "2 validation errors", "type": "Bad Request"}
            return web.json_response(error | {"param": None, "code": 400}, status=400)
        await self.scheduler.pause(mode)
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        await self.scheduler.resume()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _flush(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        if self.scheduler.flush():
            return web.Response(text=FLUSHED)
        return web.Response(text="Flush cache failed.\n", status=400)

    async def _update(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        success, message = await self.scheduler.update(body)
        told = {"success": success, "message": message, "num_paused_requests": 0}
        return web.json_response(told, status=200 if success else 400)

    async def _rename(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        version = body["new_version"]
        if body.get("abort_all_requests", True):
            self.scheduler.abort("", everything=True)
        self.scheduler.label = self.scheduler.version = version
        return web.json_response(
            {
                "success": True,
                "message": f"Weight version updated to {version}",
                "new_version": version,
            }
        )

    async def _from_tensor(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        message = (
            "update_weights_from_tensor must run between begin_weight_update() and "
            "end_weight_update()"
        )
        return web.json_response({"success": False, "message": message}, status=400)

    async def _checker(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        place = dict.fromkeys(("tp_rank", "dp_rank", "pp_rank", "rank"), 0)
        place |= dict.fromkeys(("tp_size", "dp_size", "pp_size", "size"), 1)
        rank = {
            "checksums": self.scheduler.model.checksums(),
            "per_gpu_checksum": "0" * 64,
            "parallelism_info": [{"role": "target"} | place],
        }
        return web.json_response(
            {
                "success": True,
                "message": "Success.",
                "ranks": [rank],
                "per_engine_checksum": "0" * 64,
            }
        )

    # -- looking

    async def _ready(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        return web.Response(status=503 if self.scheduler.paused else 200)

    async def _model_info(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        return web.json_response(
            {
                "model_path": self.scheduler.path or self._info["model_path"],
                "weight_version": self.scheduler.label,
                "is_generation": True,
            }
        )

    async def _server_info(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        return web.json_response(self._info | self.scheduler.quirks.info)

    async def _loads(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        load = {
            "num_running_reqs": len(self.scheduler.running),
            "num_waiting_reqs": len(self.scheduler.waiting),
        }
        return web.json_response({"version": self._info["version"], "loads": [load]})
