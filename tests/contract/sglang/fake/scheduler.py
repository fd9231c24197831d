"""Queue, steps, pauses, aborts and updates of the fake server.

A request: known -> (waits while paused, or while an update holds the lock) -> queued -> running
-> finished. Between two steps everything else gets its turn.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import DynamicCache

from tests.contract.sglang.fake.job import Job
from tests.contract.sglang.fake.model import Model
from tests.contract.sglang.fake.quirks import Quirks
from tests.contract.sglang.fake.sampling import sample

ABORTED = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
ABORTED_QUEUED = {"type": "abort", "message": "Abort in waiting queue"}
NOT_FLUSHED = (
    "Weights were updated, but the cache was not flushed because requests are still running or "
    "queued. Retract or finish them, then call /flush_cache."
)
FORCED_INTERVAL = 50
"""Tokens after which those of a request without a stream leave the scheduler."""


class Scheduler:
    """The processes behind SGLang's HTTP server."""

    def __init__(
        self,
        model: Model,
        *,
        slots: int,
        version: str,
        delta: bool,
        seeded: bool,
        stream_interval: int,
        quirks: Quirks,
        die: Callable[[], None],
    ) -> None:
        self.model = model
        self.slots = slots
        self.label = self.version = version
        self.delta = delta
        self.seeded = seeded
        self.stream_interval = stream_interval
        self.quirks = quirks
        self.die = die
        self.jobs: dict[str, Job] = {}
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.paused = False
        self.path = ""
        self._prefixes: list[list[int]] = []
        self._unpaused = asyncio.Condition()
        self._updating = asyncio.Lock()
        self._kick = asyncio.Event()

    # -- requests

    async def submit(self, job: Job) -> None:
        """Take a request; raises ValueError when it is refused."""
        if job.rid in self.jobs:
            raise ValueError(f"Duplicate request ID detected: {job.rid}")
        self.jobs[job.rid] = job
        async with self._unpaused:
            await self._unpaused.wait_for(lambda: not self.paused)
        async with self._updating:
            job.dispatched = True
            if self._ends_the_server(job):
                self.die()
                return
            if job.wants_mask and self.quirks.mask_needs_top_k and job.sampling["top_k"] == -1:
                refusal = "return_sampling_mask requires finite top_k; got top_k=1073741824."
                self._finish(job, ABORTED | {"message": refusal, "status_code": 400})
                return
            self.waiting.append(job)
            self._kick.set()

    def _ends_the_server(self, job: Job) -> bool:
        unknown = any(not 0 <= token < self.model.vocab_size for token in job.prompt)
        sampling = job.sampling
        return (unknown and self.quirks.dies_of_unknown_ids) or (
            self.seeded and sampling.get("min_p", 0) > 0 and self.quirks.dies_of_min_p_with_seeds
        )

    def abort(self, rid: str, *, everything: bool = False) -> None:
        """End requests; which ones, and whether at all, is full of surprises."""
        known = self.jobs.get(rid)
        if not everything:
            if known is None or known.abort_sent:
                return
            known.abort_sent = True
            if not known.dispatched and self.quirks.abort_lost_while_paused:
                return
        for job in list(self.jobs.values()):
            hit = job.rid.startswith(rid) if self.quirks.abort_by_prefix else job.rid == rid
            if (everything or hit) and not self.quirks.silent_before_abort:
                self._abort_one(job)

    def _abort_one(self, job: Job) -> None:
        if job in self.waiting:
            self.waiting.remove(job)
            if not job.stream:  # what did not leave the scheduler is lost
                kept = len(job.tokens) // FORCED_INTERVAL * FORCED_INTERVAL
                del job.tokens[kept:], job.versions[kept:]
            if job.tokens and self.delta and self.quirks.repeats_last_token:
                job.num_sent = min(job.num_sent, len(job.tokens) - 1)
            self._finish(job, ABORTED_QUEUED, queued=True)
        elif job in self.running:
            job.aborting = True
            if not self.quirks.abort_takes_a_step:
                self._finish(job, ABORTED)
            self._kick.set()

    # -- steps

    async def run(self) -> None:
        """Generate until cancelled."""
        while True:
            if self.paused or not (self.running or self.waiting):
                self._kick.clear()
                await self._kick.wait()
                continue
            while self.waiting and len(self.running) < self.slots:
                self.running.append(self._admitted(self.waiting.pop(0)))
            for job in list(self.running):
                self._step(job)
            await asyncio.sleep(0)

    def _admitted(self, job: Job) -> Job:
        if not job.began:
            job.began = True
            shared = [_common(job.prompt, prefix) for prefix in self._prefixes]
            job.num_cached = min(max(shared, default=0), len(job.prompt) - 1)
            self._prefixes.append(job.prompt)
        return job

    def _step(self, job: Job) -> None:
        sequence = job.sequence
        logits = self.model.logits(sequence, job.cache)
        seeded, original = self.seeded, self.quirks.original_logprobs
        one = sample(logits, job.sampling, len(sequence), seeded=seeded, original=original)
        job.tokens.append(one)
        job.versions.append(self.version)
        finish = self._ending(job, one.token)
        if finish is not None:
            self._finish(job, finish)
        elif job.stream and (
            len(job.tokens) - job.num_sent >= self.stream_interval or not job.num_sent
        ):
            job.tell(None, label=self.label, delta=self.delta, queued=False)

    def _ending(self, job: Job, token: int) -> dict[str, Any] | None:
        if job.aborting:
            return ABORTED
        if self.quirks.dropped and len(job.tokens) > 3:
            self.quirks.dropped -= 1
            return ABORTED | {"message": "too slow", "status_code": 503}
        limit = job.sampling.get("max_new_tokens", 128)
        if len(job.tokens) >= limit:
            return {"type": "length", "length": limit}
        if job.sampling.get("ignore_eos"):
            return None
        ends = set(job.sampling.get("stop_token_ids") or ())
        if self.quirks.end_token_unasked:
            ends.add(self.model.end_id)
        return {"type": "stop", "matched": token} if token in ends else None

    def _finish(self, job: Job, finish: dict[str, Any], *, queued: bool = False) -> None:
        if job in self.running:
            self.running.remove(job)
        self.jobs.pop(job.rid, None)
        job.tell(finish, label=self.label, delta=self.delta and job.stream, queued=queued)

    # -- control

    async def pause(self, mode: str) -> None:
        """Stand still; `retract` forgets keys and values, `in_place` keeps them."""
        self.paused = True
        while mode == "abort":
            self.paused = False  # what runs must reach its end
            self.abort("", everything=True)
            self._kick.set()
            await asyncio.sleep(0)
            if not self.jobs:
                self.paused = True
                break
            await asyncio.sleep(self.quirks.pause_poll_s)
        if mode == "retract":
            for job in self.running:
                job.cache = DynamicCache()
                job.num_retractions += 1
            self.waiting += self.running
            self.running.clear()

    async def resume(self) -> None:
        """Go on."""
        async with self._unpaused:
            self.paused = False
            self._unpaused.notify_all()
        self._kick.set()

    def flush(self) -> bool:
        """Forget cached prefixes; not while something runs."""
        if self.running or (self.waiting and not self.paused):
            return False
        self._prefixes.clear()
        return True

    async def update(self, body: dict[str, Any]) -> tuple[bool, str]:
        """Load a folder; unless paused, only once nothing runs any more."""
        if body.get("abort_all_requests"):
            self.abort("", everything=True)
        if self.paused:
            await asyncio.sleep(self.quirks.update_s)
            return self._update(body)
        async with self._updating:
            while self.jobs:
                await asyncio.sleep(0.01)
            return self._update(body)

    def _update(self, body: dict[str, Any]) -> tuple[bool, str]:
        if self.quirks.refused:
            self.quirks.refused -= 1
            return False, "Failed to get weights iterator: no."
        spare = ""
        if self.quirks.garbled:
            self.quirks.garbled -= 1
            spare = next(name for name, _ in self.model.network.named_parameters())
        try:
            self.model.load(Path(body["model_path"]), spare=spare)
        except OSError as error:
            return False, f"Failed to get weights iterator: {error}."
        except Exception:  # a truncated file ends the real one, too
            self.die()
            raise
        version = body.get("weight_version") or self.version
        self.version = version
        if self.quirks.not_flushed or (body.get("flush_cache", True) and not self.flush()):
            self.quirks.not_flushed = max(self.quirks.not_flushed - 1, 0)
            return False, NOT_FLUSHED
        self.label, self.path = version, body["model_path"]
        return True, (f"Succeeded to update model weights. Weight version updated to {version}.")


def _common(one: list[int], other: list[int]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
