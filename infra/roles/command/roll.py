"""Who is expected to answer a command, and who has answered.

beats, run unknown --> kept --> settle(run) --> beats and answers of that run, and of who starts
"""

from dataclasses import dataclass, field
from typing import Any

from infra.observe.harmless import harmless
from infra.roles.context import TRAINER
from infra.roles.heartbeats import LEFT
from schemas.control import Command, CommandAck, Heartbeat


@dataclass(slots=True)
class Answer:
    """What is known of one role."""

    role: str
    worker: str
    host: str
    heard: bool = False
    done: bool = False
    left: bool = False
    detail: str = ""
    seen_at: float = 0.0

    @property
    def state(self) -> str:
        """`done`, `heard` or `no answer`."""
        return "done" if self.done else "heard" if self.heard else "no answer"


@dataclass(slots=True)
class Roll:
    """Who is there, and who has answered."""

    command: Command
    """To be sent once it is settled whose run is meant; see `settle`."""
    settled: bool = False
    roles: dict[str, Answer] = field(default_factory=dict)
    """By `role/worker`; of the run that is meant, once that is settled."""
    _early: list[tuple[Heartbeat, float]] = field(default_factory=list)

    @property
    def heard_run_id(self) -> str:
        """Of whoever was heard last and belongs to a run; empty for nobody."""
        return next((beat.run_id for beat, _ in reversed(self._early) if beat.run_id), "")

    def settle(self, run_id: str) -> None:
        """Mean this run from now on; what was heard before is sorted out now.

        Args:
            run_id: Empty: nobody belongs to a run yet. Then the first that is heard of is meant.
        """
        self.settled = True
        self.command = self.command.model_copy(update={"run_id": run_id})
        early, self._early = self._early, []
        for beat, at in early:
            self.beat(beat, at)

    def beat(self, beat: Heartbeat, now: float) -> None:
        """Take a heartbeat. Who leaves need not answer, except to a stop; other runs' roles
        never."""
        if not self.settled:
            self._early.append((beat, now))
            if beat.role == TRAINER and beat.run_id and beat.state != LEFT:
                self.settle(beat.run_id)
            return
        if not self._ours(beat.run_id):
            return
        name = f"{beat.role}/{beat.worker}"
        if beat.state == LEFT:
            answer = self.roles.get(name)
            if answer is None:
                return
            answer.left = True
            if self.command.verb != "stop" and not answer.done:
                del self.roles[name]
            elif not answer.done:
                answer.detail = "left without handing over, its log says why"
            return
        answer = self._of(beat, now)
        answer.left = False

    def ack(self, ack: CommandAck, now: float) -> None:
        """Take an answer to our command."""
        ours = (self.command.by, self.command.number, self.command.verb)
        if (ack.by, ack.number, ack.verb) == ours and self._ours(ack.run_id):
            answer = self._of(ack, now)
            answer.heard, answer.done, answer.detail = True, ack.done, ack.detail

    @property
    def complete(self) -> bool:
        """Whether everybody has done it, the trainer among them."""
        return not self.missing and any(a.role == TRAINER for a in self.roles.values())

    @property
    def over(self) -> bool:
        """Whether no more answers can come: everybody has done it or left."""
        return self.complete or (bool(self.missing) and all(a.left for a in self.roles.values()))

    @property
    def missing(self) -> list[Answer]:
        """Who has not done it."""
        return [answer for _, answer in sorted(self.roles.items()) if not answer.done]

    def missing_text(self) -> str:
        """Who has not done it, in words."""
        if not self.roles:
            return "nobody of this run was heard"
        parts = [f"{line(answer)}" for answer in self.missing]
        if not any(answer.role == TRAINER for answer in self.roles.values()):
            parts.append("no trainer was heard")
        return f"{len(self.missing)} of {len(self.roles)} have not done it: " + "; ".join(parts)

    def hint(self) -> str:
        """What the operator can do."""
        if not self.roles:
            return "is the run alive, and is this its broker? 'run.py ledger' tells how it stands"
        if not any(answer.role == TRAINER for answer in self.roles.values()):
            return "the trainer decides what the run does: start it again with --resume"
        return "run the command again: who has done it answers at once"

    def to_json(self, run: str) -> dict[str, Any]:
        """For machines."""
        return {
            "run": run,
            "run_id": self.command.run_id,
            "verb": self.command.verb,
            "number": self.command.number,
            "by": self.command.by,
            "complete": self.complete,
            "roles": [
                {
                    "role": answer.role,
                    "worker": answer.worker,
                    "host": answer.host,
                    "state": answer.state,
                    "left": answer.left,
                    "detail": answer.detail,
                }
                for _, answer in sorted(self.roles.items())
            ],
        }

    def _ours(self, run_id: str) -> bool:
        """Whether it comes from the run that is meant, or from who does not know its run yet."""
        if run_id and not self.command.run_id:
            self.command = self.command.model_copy(update={"run_id": run_id})
        return run_id in ("", self.command.run_id)

    def _of(self, one: Heartbeat | CommandAck, now: float) -> Answer:
        name = f"{one.role}/{one.worker}"
        answer = self.roles.setdefault(name, Answer(one.role, one.worker, one.host))
        answer.seen_at = now
        return answer


def line(answer: Answer) -> str:
    """One role, for a terminal."""
    detail = f": {harmless(answer.detail, limit=200)}" if answer.detail else ""
    who = f"{harmless(answer.role, limit=20)}/{harmless(answer.worker, limit=60)}"
    return f"{who} on {harmless(answer.host, limit=60)} {answer.state}{detail}"
