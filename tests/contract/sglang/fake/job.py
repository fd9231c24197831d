"""One request, and how it is told."""

import asyncio
import time
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from transformers import DynamicCache

from tests.contract.sglang.fake.sampling import Sampled


@dataclass
class Job:
    """A request at the fake server."""

    rid: str
    prompt: list[int]
    sampling: dict[str, Any]
    stream: bool = False
    wants_logprob: bool = False
    wants_mask: bool = False
    num_top: int = 0
    tokens: list[Sampled] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    num_sent: int = 0
    num_cached: int = 0
    num_retractions: int = 0
    began: bool = False
    dispatched: bool = False
    abort_sent: bool = False
    aborting: bool = False
    cache: DynamicCache = field(default_factory=DynamicCache)
    events: list[dict[str, Any]] = field(default_factory=list)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    received: float = field(default_factory=time.time)

    @property
    def sequence(self) -> list[int]:
        return self.prompt + [one.token for one in self.tokens]

    def spans(self) -> list[dict[str, Any]]:
        """Runs of versions; one empty run when there is no token."""
        found, start = [], 0
        for version, run in groupby(self.versions):
            length = len(list(run))
            found.append({"version": version, "start": start, "end": start + length})
            start += length
        return found

    def tell(self, finish: dict[str, Any] | None, *, label: str, delta: bool, queued: bool) -> None:
        """Have an event sent: all tokens so far, or those that were not sent."""
        first = self.num_sent if delta else 0
        told = self.tokens[first:]
        meta: dict[str, Any] = {"id": self.rid, "finish_reason": finish}
        if not queued:
            meta |= {"prompt_tokens": len(self.prompt)}
        meta |= {"weight_version": label}
        if not queued:
            meta |= _timings(self)
        if self.wants_logprob:
            meta |= self._logprobs(self.tokens if queued else told)
        if self.wants_mask and not queued:
            meta |= {
                "output_token_sampling_mask": [one.mask for one in told],
                "output_token_sampling_logprobs": [one.mask_logprob for one in told],
                "output_token_sampling_mask_length": len(self.tokens),
            }
        meta |= {"completion_tokens": len(self.tokens)}
        if not queued:
            details = {"device": self.num_cached, "host": 0} if self.num_cached else None
            meta |= {
                "reasoning_tokens": 0,
                "cached_tokens": self.num_cached,
                "cached_tokens_details": details,
                "dp_rank": None,
            }
        if finish is not None:
            spans = self.spans() or [{"version": label, "start": 0, "end": 0}]
            meta |= {"weight_versions": spans, "weight_version": spans[-1]["version"]}
            meta |= {"e2e_latency": time.time() - self.received}
            meta |= {"response_sent_to_client_ts": time.time()}
            if not queued:
                meta |= _ended(self)
        event: dict[str, Any] = {"text": ""} if queued else {}
        event |= {"output_ids": [one.token for one in told], "meta_info": meta}
        self.events.append(event)
        self.num_sent = len(self.tokens)
        self.ready.set()

    def _logprobs(self, told: list[Sampled]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "input_token_logprobs": [],
            "output_token_logprobs": [[one.logprob, one.token, None] for one in told],
            "output_token_logprobs_length": len(self.tokens),
        }
        if self.num_top:
            found["input_top_logprobs"] = []
            found["output_top_logprobs"] = [
                [[logprob, token, None] for logprob, token in one.top[: self.num_top]]
                for one in told
            ]
        return found


def joined(events: list[dict[str, Any]], *, delta: bool) -> dict[str, Any]:
    """What a slow reader gets in the place of several events."""
    last = events[-1]
    if not delta or len(events) == 1:
        return last
    ids = [token for event in events for token in event["output_ids"]]
    meta = dict(last["meta_info"])
    for name in (
        "output_token_logprobs",
        "output_top_logprobs",
        "output_token_sampling_mask",
        "output_token_sampling_logprobs",
    ):
        if any(name in event["meta_info"] for event in events):
            meta[name] = [one for event in events for one in event["meta_info"].get(name, [])]
    return last | {"output_ids": ids, "meta_info": meta}


def _timings(job: Job) -> dict[str, Any]:
    return {
        "num_retractions": job.num_retractions,
        "storage_prefetch_wait": 0.0,
        "storage_staging_wait": 0.0,
        "forward_entry_time": job.received,
        "prefill_finished_time": job.received,
        "queue_time": 0.0,
    }


def _ended(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = {
        "request_received_ts": job.received,
        "first_token_latency": 0.1,
        "api_server_dispatch_finish_ts": job.received,
        "request_finished_ts": time.time(),
    }
    return found | ({"decode_throughput": 10.0} if len(job.tokens) > 1 else {})
