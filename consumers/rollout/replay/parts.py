"""What an agent loop gets in place of the world: engine, tools and user that repeat a record."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence

from consumers.rollout.engines.base import Finish, GenerateRequest, TokenChunk
from consumers.rollout.interactions.base import Interaction
from consumers.rollout.replay.record import Record
from consumers.rollout.replay.steps import Difference, Differs
from consumers.rollout.tools.box import ToolBox
from consumers.rollout.tools.run import ToolRun
from infra.weights.prepared import PreparedWeights, ServedWeights
from schemas.chat import ChatMessage, Speaker, ToolCall
from schemas.work import RolloutStatus, ToolResult

_LONGEST_REPLY = 2**20
"""Tokens, of a stand-in. Where a record says that a longer one was needed, the replay differs."""


class RecordedEngine:
    """An `Engine` that samples what was sampled, and is cut where it was cut."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._interrupted: set[str] = set()

    async def start(self, weights: PreparedWeights) -> None:
        """It needs none."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk | Finish]:
        """The turn as it was sampled, or its part up to where it was cut.

        Raises:
            Differs: This was not asked then.
        """
        record, start = self._record, len(request.token_ids)
        record.check_so_far(request.token_ids)
        record.note_appended()
        turn = record.turn_at(start)
        cut = record.cut_by(turn.stop)
        chunks = record.chunks(start, turn.stop if cut is None else cut.at_token)
        for chunk in chunks[:-1]:
            record.note_sampled(chunk)
            yield chunk
        if cut is not None:
            await record.fire()
        for chunk in chunks[-1:]:
            record.note_sampled(chunk)
            yield chunk
        if request.request_id in self._interrupted:
            self._interrupted.remove(request.request_id)  # the next worker counts from 0, too
            yield Finish(reason="interrupted")
        else:
            yield Finish(reason="stop" if turn.finish_reason == "stop" else "length")

    async def interrupt(self, request_ids: Collection[str] | None = None) -> None:
        """Those streams end as interrupted, once what was sampled is out."""
        self._interrupted |= set(request_ids or ())

    async def load_weights(self, weights: PreparedWeights) -> None:
        """It needs none."""

    def serving(self) -> ServedWeights:
        """The version of the newest token so far."""
        return ServedWeights(version=self._record.state.newest_version or 0, fingerprint="recorded")

    async def close(self) -> None:
        """There is nothing to free."""


class RecordedTools(ToolBox):
    """Shows the recipe's tools, and answers every call with its recorded result; runs none."""

    record: Record

    def start(self, calls: Sequence[ToolCall], names: Collection[str]) -> ToolRun:
        """Results by call id."""
        return ToolRun({call.id: (call, None) for call in calls}, self._recorded)

    async def _recorded(self, call: ToolCall, _mark_started: Callable[[], None]) -> ToolResult:
        asked = f"{call.function.name} {call.function.arguments}"
        result = self.record.results.get(call.id)
        if result is None:
            raise Differs(
                Difference(where=f"tool call {call.id}", recorded="no result", replayed=asked)
            )
        self.record.note("tool", text=result.content, detail=asked)
        return result.model_copy(update={"call": call})


class RecordedPartner(Interaction):
    """Says what was said, or nothing more.

    A reply that left no room to sample ended its rollout and was not recorded: something as long
    stands in for it.
    """

    def __init__(self, record: Record) -> None:
        super().__init__(record.state.task)
        self._record = record

    async def reply(self, messages: Sequence[ChatMessage]) -> str | None:
        """What follows these messages in the record.

        Raises:
            Differs: Something else than a reply.
        """
        rollout = self._record.rollout
        recorded = rollout.progress.messages[len(messages) :]
        if recorded and recorded[0].role is not Speaker.USER:
            where = f"messages[{len(messages)}]"
            raise Differs(
                Difference(
                    where=where, recorded=f"a {recorded[0].role} message", replayed="a user's reply"
                )
            )
        if recorded:
            self._record.note("reply", text=recorded[0].content)
            return recorded[0].content
        if rollout.status is RolloutStatus.TRUNCATED and rollout.finish_reason == "length":
            self._record.note("reply", detail="too long to go on, and not recorded")
            most = min(self.task.budgets.max_response_tokens, _LONGEST_REPLY)
            return " ".join(map(str, range(most)))
        self._record.note("reply", detail="none: the conversation is over")
        return None
