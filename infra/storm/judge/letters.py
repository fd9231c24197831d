"""Dead letters, and what explains each: the storm, another run, or a failure that tells its story.

- *damaged*: its body does not match its checksum, and the storm truncated or flipped a message of
  that queue; no more of them than it damaged.
- *foreign*: it is of another run.
- *budget*: it came back more often than the infrastructure budget allows while the storm killed,
  froze or cut processes off.
- *told*: a failure by content, with stage, reason, attempts, the original message, and a traceback
  where code raised (and it raises in the undisturbed run, too).

Everything else is unexplained: above all an intact message that was given up as malformed, one
that the broker gave up after too many deliveries, and code that raises in a storm only.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from infra.amqp.codec import CHECKSUM, checksum, decode
from infra.amqp.errors import BadMessage
from infra.amqp.message import Delivery
from schemas.storm import Fault, FaultKind
from schemas.work import Failure, FailureKind, OriginalMessage

DAMAGING = (FaultKind.TRUNCATE, FaultKind.FLIP)
RETURNING = frozenset(
    {
        FaultKind.KILL,
        FaultKind.TERM,
        FaultKind.FREEZE,
        FaultKind.BROKER_KILL,
        FaultKind.BROKER_TERM,
        FaultKind.CUT,
        FaultKind.BLACK_HOLE,
        FaultKind.SLOW,
    }
)
"""Faults after which the broker gives messages to somebody else."""
LEAST_RETURNS = 7
"""Of a message whose infrastructure budget is spent: more than six in a row are allowed to none."""
_RAISED = frozenset({"rollout", "reward"})
"""Stages that run users' code."""
_NO_TRACEBACK = ("did not return in", "its process", "is not finite")
"""Reasons that are no exception: the call did not end, ended its process, or gave no number."""


@dataclass(frozen=True, slots=True)
class Explained:
    """How many letters, by explanation, and the others in words."""

    by: Counter[str]
    unexplained: tuple[str, ...]

    @property
    def num_letters(self) -> int:
        """Different ones."""
        return sum(self.by.values()) - self.by["repeated"] + len(self.unexplained)


def explain(
    letters: Iterable[Delivery], faults: Sequence[Fault], run_id: str, *, code_raises: bool = True
) -> Explained:
    """Find what explains each dead letter. One that was published twice is one.

    Args:
        letters: Drained from `dead_letters`.
        faults: That were injected; the target of one to a message is its queue.
        run_id: Of the judged run.
        code_raises: Whether there are failures without a storm, too.
    """
    by: Counter[str] = Counter()
    unexplained: list[str] = []
    damages = Counter(fault.target for fault in faults if fault.kind in DAMAGING)
    returning = any(fault.kind in RETURNING for fault in faults)
    seen: set[tuple[str, str]] = set()
    for letter in letters:
        failure = _failure(letter)
        about = failure.original.body if isinstance(failure, Failure) and failure.original else ""
        identity = (letter.envelope.message_id, about)
        if all(identity) and identity in seen:
            by["repeated"] += 1
            continue
        seen.add(identity)
        answer, fine = _explain(
            letter, failure, run_id, damages, returning=returning, code_raises=code_raises
        )
        if fine:
            by[answer] += 1
        else:
            unexplained.append(f"{_name(letter)}: {answer}")
    return Explained(by, tuple(unexplained))


def _failure(letter: Delivery) -> Failure | str:
    """The failure that a letter holds, or why it holds none."""
    if letter.envelope.type != Failure.__name__:
        return "the broker gave it up, nobody said why"
    try:
        return decode(letter, letter.body, Failure)
    except BadMessage as error:
        return f"the failure itself cannot be read: {error.reason}"


def _explain(
    letter: Delivery,
    failure: Failure | str,
    run_id: str,
    damages: Counter[str],
    *,
    returning: bool,
    code_raises: bool,
) -> tuple[str, bool]:
    """The explanation; or what is missing, and False."""
    if letter.envelope.headers.get("run_id", run_id) != run_id:
        return "foreign", True
    if isinstance(failure, str):
        return failure, False
    original = failure.original
    if original is None:
        return f"without the original message ({failure.stage}: {failure.error})", False
    if original.headers.get("run_id", run_id) != run_id:
        return "foreign", True
    if not original.truncated and _is_damaged(original):
        if damages[original.queue] <= 0:
            return f"a damaged message of {original.queue}, which nobody damaged", False
        damages[original.queue] -= 1
        return "damaged", True
    told = f"{failure.stage}: {failure.error}"
    if not failure.stage or not failure.error or failure.attempts < 1:
        return f"without stage, reason or attempts ({told})", False
    if failure.kind is FailureKind.INFRA:
        spent = max(failure.returns, failure.attempts) >= LEAST_RETURNS
        if spent and returning:
            return "budget", True
        return f"given up by the infrastructure after {failure.returns} returns ({told})", False
    if failure.traceback and not code_raises:
        return f"code raised, as it never does without a storm ({told})", False
    return _data_failure(failure, told)


def _data_failure(failure: Failure, told: str) -> tuple[str, bool]:
    raised = not any(reason in failure.error for reason in _NO_TRACEBACK)
    if failure.stage in _RAISED and raised and not failure.traceback:
        return f"an intact message was refused ({told})", False
    if failure.stage == "trainer":
        return f"the trainer refused an intact message ({told})", False
    return "told", True


def _is_damaged(original: OriginalMessage) -> bool:
    return original.headers.get(CHECKSUM) != checksum(base64.b64decode(original.body))


def _name(letter: Delivery) -> str:
    rollout = letter.envelope.headers.get("rollout_id") or letter.envelope.correlation_id
    return f"{letter.envelope.type or 'message'} of {rollout or 'nobody'}"
