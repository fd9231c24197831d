"""From the events of one request to tokens, each with its log-probability and its version."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite
from typing import Any, Literal

from consumers.rollout.engines.base import EngineFailed, TokenChunk

Reason = Literal["stop", "length", "interrupted"]


class Dropped(Exception):
    """The server gave a request up by itself; the text is its reason."""


@dataclass
class Reading:
    """What was read of one request. SGLang's events are read by one rule, whether each brings
    everything so far, or what is new, or (after an abort in the queue) repeats its last token
    beside all log-probabilities: as many of the last entries are new as `completion_tokens` grew.

    The version of a token. Events carry the version that the server serves when it sends them,
    the last one the exact spans. Weights change only while generation stands still, so tokens
    of an event with the same version as the one before are of that version, and so is a single
    token. Several tokens of an event that names another version are held back until the spans
    are known.
    """

    version: int
    """Served when the request was sent."""
    known: Collection[int]
    """Versions that this engine has served."""
    vocab_size: int
    """Ids are below it."""
    truncated: bool
    """Log-probabilities are of the distribution after top-k, top-p and min-p."""
    oldest: int = field(init=False)
    """Versions never go back behind the one that was served when the request was sent."""
    versions: list[int] = field(default_factory=list)
    """Of the tokens that were passed on."""
    held: list[tuple[int, float]] = field(default_factory=list)
    num_cached_tokens: int = 0
    """Tokens of the prompt that the first prefill did not compute."""

    def __post_init__(self) -> None:
        self.oldest = self.version

    def take(self, event: Mapping[str, Any]) -> tuple[list[TokenChunk], Reason | None]:
        """Read one event.

        Returns:
            What is new, and how the request ended, if it did.

        Raises:
            ValueError: The server refuses the request.
            Dropped: The server gave it up.
            EngineFailed: It failed, or the event is not what SGLang sends.
        """
        try:
            if "error" in event:
                _raise_refusal(event["error"])
            meta = event["meta_info"]
            if not self._seen:
                self.num_cached_tokens = meta.get("cached_tokens") or 0
            new = self._new(event["output_ids"], meta)
            reason = _reason(meta["finish_reason"])
            spans = meta["weight_versions"] if reason else None
            label = self._number(meta["weight_version"])
            if self.held or (label != self.version and len(new) > 1):
                self.held += new
                chunks = []
            else:
                self.version = label if new else self.version
                chunks = self._passed([(*token, label) for token in new])
            if spans is not None:
                chunks += self._settled(spans)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise EngineFailed(
                f"SGLang sent an event that is not understood ({type(error).__name__}: {error}): "
                f"{str(event)[:300]}"
            ) from error
        return chunks, reason

    @property
    def _seen(self) -> int:
        return len(self.versions) + len(self.held)

    def _new(self, ids: Sequence[int], meta: Mapping[str, Any]) -> list[tuple[int, float]]:
        count = meta["completion_tokens"] - self._seen
        if count == 0:
            return []
        ids, pairs = ids[-count:], meta["output_token_logprobs"][-count:]
        logprobs = [pair[0] for pair in pairs]
        if self.truncated:
            logprobs = meta["output_token_sampling_logprobs"][-count:]
        agree = ids == [pair[1] for pair in pairs] and len(ids) == len(logprobs)
        if not agree or len(ids) != count:
            raise IndexError(
                f"{count} new tokens, {len(ids)} ids, {len(logprobs)} log-probabilities"
            )
        if not all(map(isfinite, logprobs)):
            raise TypeError(f"a log-probability of {logprobs}")
        if not all(type(one) is int and 0 <= one < self.vocab_size for one in ids):
            raise TypeError(f"ids {ids} of a vocabulary of {self.vocab_size}")
        return list(zip(ids, logprobs, strict=True))

    def _settled(self, spans: Sequence[Mapping[str, Any]]) -> list[TokenChunk]:
        """Compare the spans with what was passed on, and pass on what was held."""
        exact = [
            self._number(span["version"])
            for span in spans
            for _ in range(span["start"], span["end"])
        ]
        if len(exact) != self._seen or exact[: len(self.versions)] != self.versions:
            raise EngineFailed(
                f"SGLang counts versions {spans}, its events told {_runs(self.versions)}",
                hint="only this worker may change the weights of its server",
            )
        held, self.held = self.held, []
        rest = exact[len(self.versions) :]
        return self._passed([(*token, at) for token, at in zip(held, rest, strict=True)])

    def _passed(self, tokens: Sequence[tuple[int, float, int]]) -> list[TokenChunk]:
        self.versions += [version for *_, version in tokens]
        return [
            TokenChunk(
                token_ids=tuple(one[0] for one in run),
                logprobs=tuple(one[1] for one in run),
                policy_version=version,
            )
            for version, run in (
                (version, list(group)) for version, group in groupby(tokens, lambda one: one[2])
            )
        ]

    def _number(self, label: str) -> int:
        if not (label.isdecimal() and int(label) in self.known):
            raise EngineFailed(
                f"SGLang serves weights with version {label!r}, which is not one of this run's",
                hint="only this worker may change the weights of its server",
            )
        if int(label) < self.oldest:
            raise EngineFailed(
                f"SGLang serves version {label} again, after version {self.oldest} was loaded",
                hint="was the server started anew? then this worker must be, too",
            )
        return int(label)


def _reason(finish: Mapping[str, Any] | None) -> Reason | None:
    if finish is None:
        return None
    kind = finish["type"]
    if kind in ("stop", "length"):
        return kind  # type: ignore[no-any-return]
    if kind != "abort":
        raise KeyError(f"finish_reason {finish}")
    status, message = finish.get("status_code"), str(finish.get("message"))
    if status is None:
        return "interrupted"
    if 400 <= status < 500:
        raise ValueError(f"SGLang refuses: {message}")
    if status == 503:
        raise Dropped(message)
    raise EngineFailed(f"SGLang failed: {message}")


def _raise_refusal(error: Mapping[str, Any]) -> None:
    message = str(error.get("message") if isinstance(error, dict) else error)
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and not 400 <= code < 500:
        raise EngineFailed(f"SGLang failed: {message}")
    raise ValueError(f"SGLang refuses: {message}")


def _runs(versions: Sequence[int]) -> list[tuple[int, int]]:
    return [(version, len(list(group))) for version, group in groupby(versions)]
