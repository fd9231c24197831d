"""Every kind of harm that a message can come to, so that no reader may take it for a good one.

Kinds are told by where they harm: the bytes under an old checksum, the envelope, the bytes with a
checksum that fits, or the JSON with a checksum that fits, so that validation is reached.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import zstandard

from infra.amqp.codec import CHECKSUM
from tests.chaos.harmed_json import json_mutations
from tests.chaos.hostile_message import Hostile, Raw

Mutate = Callable[[Hostile, Random], Hostile]

TASKS = ("prompts", "eval_prompts", "cancel_queue")
HUGE_TIME = Raw(b"T", b"\xff" * 8)
NOT_A_NUMBER = Raw(b"d", struct.pack(">d", float("nan")))
"""RabbitMQ closes the connection that sends it, so only decoders meet it."""


def mutations_for(queue: str) -> Mapping[str, Mutate]:
    """Kind -> what makes a message of this queue unreadable or refused."""
    return _MUTATIONS[queue]


def _stale(harm: Callable[[bytes, Random], bytes]) -> Mutate:
    return lambda message, rng: replace(message, body=harm(message.body, rng))


def _sealed(harm: Callable[[bytes, Random], bytes]) -> Mutate:
    return lambda message, rng: message.sealed(harm(message.body, rng))


def _headers(**changes: str | int | Raw) -> Mutate:
    return lambda message, _: message.with_headers(**changes)


def _without(*names: str) -> Mutate:
    return lambda message, _: message.without(*names)


def _envelope(**changes: Any) -> Mutate:
    return lambda message, _: replace(message, **changes)


def flip(body: bytes, rng: Random) -> bytes:
    """One bit."""
    place = rng.randrange(len(body))
    return body[:place] + bytes([body[place] ^ 1 << rng.randrange(8)]) + body[place + 1 :]


def cut(body: bytes, rng: Random) -> bytes:
    """The beginning."""
    return body[: rng.randrange(1, len(body))]


def _grown(body: bytes, rng: Random) -> bytes:
    return body + rng.randbytes(rng.randrange(1, 2000))


def _inserted(what: bytes) -> Callable[[bytes, Random], bytes]:
    """Inside the first value that is text."""

    def harm(body: bytes, _: Random) -> bytes:
        at = body.index(b':"') + 2
        return body[:at] + what + body[at:]

    return harm


def _zeroed(body: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(body))
    return body[:at] + bytes(min(16, len(body) - at)) + body[at + 16 :]


def unreadable(body: bytes, rng: Random) -> bytes:
    """Flipped until it is no JSON any more, as Python's own reader sees it."""
    while True:
        body = flip(body, rng)
        try:
            json.loads(body)
        except ValueError:
            return body


_UNDER_AN_OLD_CHECKSUM: dict[str, Mutate] = {
    "flipped": _stale(flip),
    "truncated": _stale(cut),
    "extended": _stale(_grown),
    "zeroed": _stale(lambda body, rng: _zeroed(body, rng) + b"\0"),
    "emptied": _stale(lambda *_: b""),
    "noise": _stale(lambda body, rng: rng.randbytes(len(body) + 1)),
}

_ENVELOPE: dict[str, Mutate] = {
    "no headers": lambda message, _: replace(message, headers={}),
    "no run id": _without("run_id"),
    "no group": _without("group"),
    "no checksum": _without(CHECKSUM),
    "no message id": lambda message, _: replace(message.without("run_id"), message_id=b""),
    "another run": _headers(run_id="another"),
    "number as run id": _headers(run_id=7),
    "huge run id": _headers(run_id="r" * 60_000),
    "run id of bytes": _headers(run_id=Raw(b"S", struct.pack(">I", 4) + b"\xff\xfe\x00\x80")),
    "negative group": _headers(group=-1),
    "huge group": _headers(group=2**62),
    "group of words": _headers(group="seven"),
    "group as a time": _headers(group=HUGE_TIME),
    "group as a table": _headers(group=Raw(b"F", struct.pack(">I", 0))),
    "negative index": _headers(index=-7),
    "huge index": _headers(index=2**63 - 1),
    "rollout id of another alphabet": _headers(rollout_id="../../etc/passwd\0"),
    "long rollout id": _headers(rollout_id="1" * 10_000),
    "negative attempt": _headers(attempt=-(2**63)),
    "unknown purpose": _headers(purpose="fun"),
    "numbered purpose": _headers(purpose=1),
    "negative returns": _headers(returns=-1),
    "words for returns": _headers(returns_total="many"),
    "foreign checksum": _headers(checksum="sha256:00"),
    "number as checksum": _headers(checksum=0),
    "checksum as a list": _headers(checksum=Raw(b"A", struct.pack(">I", 0))),
    "unknown type": _envelope(type=b"Surprise"),
    "no type": _envelope(type=b""),
    "type of bytes": _envelope(type=b"\xff" * 255),
    "control on a work queue": _envelope(type=b"RunState"),
    "gzip": _envelope(content_encoding=b"gzip"),
    "encoding of bytes": _envelope(content_encoding=b"\xfe" * 200),
    "plain called zstd": _envelope(content_encoding=b"zstd"),
    "ids of bytes": lambda message, _: replace(
        message.without("group"), correlation_id=b"\xff" * 255, app_id=b"\x80" * 255
    ),
    "strange headers beside": lambda message, rng: message.without("run_id").with_headers(
        time=HUGE_TIME,
        void=Raw(b"V", b""),
        truth=Raw(b"t", b"\x01"),
        money=Raw(b"D", b"\xff" * 5),
        octets=Raw(b"x", struct.pack(">I", 3) + b"\x00\xff\x01"),
        **{f"junk{number}": rng.randbytes(40).hex() for number in range(150)},
    ),
}

_BYTES_BEHIND_THE_CHECKSUM: dict[str, Mutate] = {
    "half": _sealed(cut),
    "no JSON": _sealed(unreadable),
    "nothing": _sealed(lambda *_: b""),
    "blanks": _sealed(lambda *_: b" \n" * 1000),
    "random bytes": _sealed(lambda _, rng: rng.randbytes(rng.randrange(1, 500))),
    "two documents": _sealed(lambda body, _: body + body),
    "a byte order mark": _sealed(lambda body, _: b"\xef\xbb\xbf" + body),
    "UTF-16": _sealed(lambda body, _: body.decode().encode("utf-16")),
    "invalid UTF-8": _sealed(_inserted(b"\xc3\x28\xff")),
    "overlong UTF-8": _sealed(_inserted(b"\xc0\xaf")),
    "half a surrogate": _sealed(_inserted(b"\\ud800")),
    "a raw line break": _sealed(_inserted(b"\n\0")),
    "a list": _sealed(lambda body, _: b"[" + body + b"]"),
    "null": _sealed(lambda *_: b"null"),
    "a number": _sealed(lambda *_: b"1" * 400),
    "a text": _sealed(lambda *_: b'"RolloutTask"'),
    "an empty table": _sealed(lambda *_: b"{}"),
    "100,000 brackets": _sealed(lambda *_: b"[" * 100_000),
    "deep tables": _sealed(lambda *_: b'{"a":' * 1000 + b"1" + b"}" * 1000),
    "100,000 empty lists": _sealed(lambda *_: b"[" + b"[]," * 100_000 + b"[]]"),
}


@cache
def _bomb(*, stated: bool) -> bytes:
    """256 MiB of blanks in some KB; its size said in the frame's header, or not."""
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=stated)
    blanks = b" " * (1 << 20)
    job = compressor.compressobj(size=256 << 20) if stated else compressor.compressobj()
    return b"".join(job.compress(blanks) for _ in range(256)) + job.flush()


def _claims(size: int) -> bytes:
    """A frame that says that it inflates to so many bytes, and holds one."""
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", size) + b"\x09\x00\x00a"


def _zstd(make: Callable[[bytes, Random], bytes]) -> Mutate:
    return lambda message, rng: replace(
        message.sealed(make(message.body, rng)), content_encoding=b"zstd"
    )


_COMPRESSED: dict[str, Mutate] = {
    "a bomb": _zstd(lambda *_: _bomb(stated=True)),
    "a bomb that hides its size": _zstd(lambda *_: _bomb(stated=False)),
    "2 TiB, it says": _zstd(lambda *_: _claims(2 << 40)),
    "60 MiB, it says": _zstd(lambda *_: _claims(60 << 20)),
    "half a frame": _zstd(lambda body, rng: cut(zstandard.compress(body), rng)),
    "a flipped frame": _zstd(lambda body, rng: zstandard.compress(unreadable(body, rng))),
    "a frame and more": _zstd(lambda body, rng: zstandard.compress(body) + rng.randbytes(20)),
    "an empty frame": _zstd(lambda *_: zstandard.compress(b"")),
}

_OF_TASKS: dict[str, Mutate] = {
    "a version never to come": _headers(min_version=2**40),
    "back a million times": _headers(returns=10**6),
    "back for ever": _headers(returns_total=2**40),
}
_OF_CREDITS: dict[str, Mutate] = {
    "another group in the header": _headers(group=10**9),
    "another attempt": _headers(attempt=99),
    "another version": _headers(min_version=2**40),
}
_OF_MEMBERS: dict[str, Mutate] = {
    "another member": _headers(index=77),
    "another id": _headers(rollout_id="9999.3"),
    "another group": _headers(group=9999),
}


def _all_of(queue: str) -> dict[str, Mutate]:
    kinds = {
        **_UNDER_AN_OLD_CHECKSUM,
        **_ENVELOPE,
        **_BYTES_BEHIND_THE_CHECKSUM,
        **_COMPRESSED,
        **(_OF_CREDITS if queue == "credits" else _OF_MEMBERS),
        **(_OF_TASKS if queue in TASKS else {}),
    }
    for kind, harm in json_mutations(queue).items():
        kinds[kind] = _in_json(harm)
    return kinds


def _in_json(harm: Callable[[Any, Random], Any]) -> Mutate:
    def mutate(message: Hostile, rng: Random) -> Hostile:
        value = harm(json.loads(message.body), rng)
        return message.sealed(json.dumps(value, separators=(",", ":")).encode())

    return mutate


_MUTATIONS = {
    queue: _all_of(queue)
    for queue in ("credits", *TASKS, "rollouts", "trajectories", "evaluations", "failures")
}
