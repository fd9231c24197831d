"""One rollout's record as it is played: what comes next, where it was cut, what has happened."""

from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import groupby

from consumers.rollout.agents.loop import AgentLoop
from consumers.rollout.agents.state import CutReason, RolloutState
from consumers.rollout.engines.base import TokenChunk
from consumers.rollout.replay.compare import token_difference
from consumers.rollout.replay.steps import Difference, Differs, Event, Step
from infra.text.renderer import Renderer
from schemas.work import Interruption, Rollout, Turn, TurnKind


class Record:
    """The record of one rollout, and its replay so far.

    Args:
        rollout: As it was recorded.
        renderer: Decodes tokens for the steps.
    """

    def __init__(self, rollout: Rollout, renderer: Renderer) -> None:
        self.rollout = rollout
        self.steps: list[Step] = []
        self.results = {result.call.id: result for result in rollout.progress.tool_results}
        self._tokens = rollout.progress.tokens
        self._ids = self._tokens.token_ids.tolist()
        self._cuts = deque(rollout.progress.interruptions)
        self.decode = partial(renderer.decode, skip_special=False)
        self._loop: AgentLoop | None = None
        self._state: RolloutState | None = None
        self._worker = ""

    # -- who plays it

    def taken(self, loop: AgentLoop, state: RolloutState, worker: str) -> None:
        """A worker goes on with it."""
        self._loop, self._state, self._worker = loop, state, worker

    @property
    def state(self) -> RolloutState:
        """Of the worker that plays it now."""
        assert self._state is not None
        return self._state

    @property
    def workers(self) -> list[str]:
        """Who worked on it, one after the other: all but the last were cut."""
        return [*(cut.worker for cut in self._cuts), self.rollout.worker]

    def note(
        self, event: Event, *, start: int | None = None, text: str = "", detail: str = ""
    ) -> None:
        """Something has happened, at the end of the tokens that there are."""
        stop = len(self.state.token_ids)
        self._add(event, stop if start is None else start, stop, text=text, detail=detail)

    def note_appended(self) -> None:
        """The turn before the one that is to be sampled: prompt, tool results or a reply."""
        turn = self.state.turns[-1]
        if turn.kind is not TurnKind.ASSISTANT and turn.stop > self.steps[-1].stop:
            text = self.decode(self.state.token_ids[turn.start :])
            self.note("appended", start=turn.start, text=text, detail=turn.kind.value)

    def note_sampled(self, chunk: TokenChunk) -> None:
        """The engine is about to give these."""
        start = len(self.state.token_ids)
        text = self.decode(chunk.token_ids)
        stop = start + len(chunk.token_ids)
        self._add("sampled", start, stop, version=chunk.policy_version, text=text)

    def _add(
        self,
        event: Event,
        start: int,
        stop: int,
        *,
        version: int | None = None,
        text: str = "",
        detail: str = "",
    ) -> None:
        self.steps.append(
            Step(
                event=event,
                phase=self.state.phase,
                turn=self.state.num_turns,
                start=start,
                stop=stop,
                worker=self._worker,
                version=version,
                text=text,
                detail=detail,
            )
        )

    # -- what comes next

    def check_so_far(self, token_ids: Sequence[int]) -> None:
        """The engine is asked to go on behind these tokens, and so it was.

        Raises:
            Differs: It was asked to go on behind others.
        """
        if list(token_ids) == self._ids[: len(token_ids)]:
            return
        raise Differs(token_difference(self.rollout, token_ids, self.decode))

    def turn_at(self, length: int) -> Turn:
        """The assistant turn that goes on at this length.

        Raises:
            Differs: Nothing was sampled there.
        """
        for turn in reversed(self.rollout.progress.turns):
            if turn.kind is TurnKind.ASSISTANT and turn.start <= length <= turn.stop:
                return turn
        raise Differs(
            Difference(
                where=f"token {length}",
                recorded=f"nothing is sampled; {len(self._ids)} tokens in all, "
                f"{self.rollout.status}: {self.rollout.finish_reason}",
                replayed="the loop asks the engine to go on",
            )
        )

    def chunks(self, start: int, stop: int) -> list[TokenChunk]:
        """What was sampled in `[start, stop)`, in one piece for each policy version."""
        versions = self._tokens.version_array.tolist()
        logprobs = self._tokens.logprobs.tolist()
        pieces = [
            list(piece) for _, piece in groupby(range(start, stop), key=lambda n: versions[n])
        ]
        return [
            TokenChunk(
                token_ids=tuple(self._ids[piece[0] : piece[-1] + 1]),
                logprobs=tuple(logprobs[piece[0] : piece[-1] + 1]),
                policy_version=versions[piece[0]],
            )
            for piece in pieces
        ]

    # -- cuts

    def cut_by(self, length: int) -> Interruption | None:
        """The next cut, if it comes before the sequence is longer than this."""
        cut = self._cuts[0] if self._cuts else None
        return cut if cut is not None and cut.at_token <= length else None

    def cut_before_running(self) -> bool:
        """Whether it was cut again where it was taken up. A sync cuts only in the engine."""
        cut = self.cut_by(len(self.state.token_ids))
        return cut is not None and cut.reason != CutReason.SYNC.value

    async def fire(self) -> None:
        """Cut it, as it was cut.

        Raises:
            Differs: The loop will not be cut here.
        """
        cut = self._cuts.popleft()
        assert self._loop is not None
        await self._loop.cut(self.state, CutReason(cut.reason))
        if self.state.cut_reason is None:
            pinned = ", pinned" if self.state.pinned else ""
            raise _not_cut(cut, f"the loop cannot be cut: {self.state.phase}{pinned}")

    def check_all_cut(self) -> None:
        """Every cut has come.

        Raises:
            Differs: The rollout ended before.
        """
        if self._cuts:
            ended = f"ended before, with {len(self.state.token_ids)} tokens"
            raise _not_cut(self._cuts[0], ended)


def _not_cut(cut: Interruption, instead: str) -> Differs:
    where, how = f"cut at token {cut.at_token}", f"{cut.reason}, by {cut.worker}"
    return Differs(Difference(where=where, recorded=how, replayed=instead))
