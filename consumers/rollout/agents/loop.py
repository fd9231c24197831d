"""The agent loop: one state machine for every agent, cut and continued at any token.

PENDING --render--> GENERATING --turn ends--> PROCESSING_TOOLS --results--+
                      ^   |  |                                           |
                      |   |  +--------------> INTERACTING -----reply-----+
                      +---|----------------------------------------------+
                          +--> TERMINATED
cut: GENERATING at a token, any other state where it waits -> Snapshot, or the plain task
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Literal

from consumers.rollout.agents import record
from consumers.rollout.agents.pins import pin, pin_for_options
from consumers.rollout.agents.seeds import request_seed
from consumers.rollout.agents.state import CutReason, RolloutFailed, RolloutState
from consumers.rollout.agents.stops import TurnStops
from consumers.rollout.agents.talk import reply_to
from consumers.rollout.agents.tokens import (
    append_sampled,
    append_unsampled,
    count_prefill,
    room,
    terminate,
    unreadable,
)
from consumers.rollout.agents.waiting import unless_cut
from consumers.rollout.engines.base import (
    Engine,
    EngineFailed,
    Finish,
    GenerateRequest,
)
from consumers.rollout.parsers.base import ParsedTurn, ToolParser
from consumers.rollout.tools.box import ToolBox
from infra.roles.errors import ConfigError
from infra.text.errors import TemplateRefused
from infra.text.renderer import Renderer
from schemas.chat import ChatMessage, Speaker, ToolCall
from schemas.work import (
    AgentPhase,
    Rollout,
    RolloutStatus,
    RolloutTask,
    Snapshot,
    Turn,
    TurnKind,
)

_AFTER_A_TURN = (AgentPhase.PROCESSING_TOOLS, AgentPhase.INTERACTING, AgentPhase.TERMINATED)

TurnEnd = Literal["stop", "length", "max_turn_tokens"]


class AgentLoop:
    """Drives rollouts; one per worker, any number of rollouts at a time.

    Args:
        admit: Awaited before every request; blocks while the engine swaps weights, returns at
            once otherwise.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        renderer: Renderer,
        parser: ToolParser,
        tools: ToolBox,
        worker: str,
        admit: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._parser = parser
        self._tools = tools
        self._worker = worker
        self.tool_calls = tools.running
        self._admit = admit
        self._clock = clock
        self._numbers = itertools.count()
        self._stops = {
            False: renderer.eos_token_ids,
            True: renderer.eos_token_ids | parser.stop_token_ids(renderer),
        }

    def begin(self, task: RolloutTask) -> RolloutState:
        """Take up a task.

        Raises:
            RolloutFailed: Its agent does not exist.
        """
        record.check_loaded(task)
        state = record.new_state(task)
        pin_for_options(state)
        return state

    def restore(self, snapshot: Snapshot) -> RolloutState:
        """Take up a snapshot, whoever cut it.

        Raises:
            RolloutFailed: It contradicts itself, or its agent does not exist.
        """
        record.check_loaded(snapshot.task)
        state = record.from_snapshot(snapshot, worker=self._worker)
        pin_for_options(state)
        return state

    async def run(self, state: RolloutState) -> Rollout | Snapshot | RolloutTask:
        """Work on a rollout until it ends or is cut.

        After an accepted cut it returns soon: at the token, before the next tool or reply starts,
        or when calls that must not be repeated have finished.

        Returns:
            The finished rollout; a snapshot if it was cut; the plain task if it was cut before
            its first sampled token.

        Raises:
            RolloutFailed: This attempt failed.
            Exception: Whatever an agent or an interaction raises.
            EngineFailed: The engine is dead or breaks its protocol.
        """
        steps = {
            AgentPhase.PENDING: self._open,
            AgentPhase.GENERATING: self._generate,
            AgentPhase.PROCESSING_TOOLS: self._process_tools,
            AgentPhase.INTERACTING: self._interact,
        }
        while state.phase is not AgentPhase.TERMINATED:
            if state.cut_reason is not None:
                return self._hand_over(state, state.cut_reason)
            try:
                await steps[state.phase](state)
            except TemplateRefused as error:
                raise RolloutFailed(str(error), final=True) from error
        stops = self._stops[state.agent.uses_tools]
        return record.to_rollout(state, worker=self._worker, stop_token_ids=stops)

    async def cut(self, state: RolloutState, reason: CutReason) -> None:
        """Ask for a cut; `run` then returns soon. Again, or when it cannot be cut: nothing."""
        await self.cut_all((state,), reason)

    async def cut_all(self, states: Iterable[RolloutState], reason: CutReason) -> None:
        """As `cut`, of many: the engine is told once."""
        running: set[str] = set()
        for state in states:
            if not state.interruptible(reason):
                continue
            if state.cut_reason is None:
                state.cut_reason = reason
                if state.wait is not None:  # once: a wait that is ending takes no other time
                    state.wait.reschedule(asyncio.get_running_loop().time())
            if state.request_id is not None:
                running.add(state.request_id)
        if running:
            await self._engine.interrupt(running)

    def _hand_over(self, state: RolloutState, reason: CutReason) -> Snapshot | RolloutTask:
        if state.pinned or state.oldest_version is None:
            return state.task
        return record.to_snapshot(state, worker=self._worker, reason=reason)

    async def _open(self, state: RolloutState) -> None:
        task = state.task
        state.messages = list(state.agent.opening())
        names = task.tools if state.agent.uses_tools else ()
        try:
            specs = self._tools.specs(names)
        except ConfigError as error:
            raise RolloutFailed(str(error), final=True) from error
        token_ids = self._renderer.prompt(state.messages, specs)
        if not 0 < len(token_ids) <= task.budgets.max_prompt_tokens:
            raise RolloutFailed(
                f"the prompt of {state.rollout_id} has {len(token_ids)} tokens, "
                f"max_prompt_tokens is {task.budgets.max_prompt_tokens}",
                hint="filter the dataset by length or raise [rollout] max_prompt_tokens",
                final=True,
            )
        append_unsampled(state, token_ids, TurnKind.PROMPT)
        state.num_prompt_tokens = len(token_ids)
        state.phase = AgentPhase.GENERATING

    async def _generate(self, state: RolloutState) -> None:
        """Sample until the turn ends; what was sampled before a cut counts as if now."""
        if self._end_turn_if_over(state):
            return
        waiting_since = self._clock()
        admitted = await unless_cut(state, self._admit())
        state.waiting_s += self._clock() - waiting_since
        if not admitted:
            return
        request = self._request(state)
        finish = await self._sample(state, request)
        if len(state.token_ids) > len(request.token_ids):
            count_prefill(state, len(request.token_ids), finish.num_cached_tokens)
        if self._end_turn_if_over(state):
            return
        if finish.reason == "stop" and len(state.token_ids) > state.turn_start:
            self._end_turn(state, "stop")
        elif finish.reason == "length":  # the engine's context is full
            self._end_turn(state, "length")
        elif finish.reason == "stop":
            raise EngineFailed(f"request {request.request_id} stopped without a token")
        elif state.cut_reason is None:
            state.num_before_cut = record.num_computed(state)
            await asyncio.sleep(0)

    def _request(self, state: RolloutState) -> GenerateRequest:
        task = state.task
        max_tokens = min(room(state))
        missing = task.budgets.min_tokens - (len(state.token_ids) - state.turn_start)
        return GenerateRequest(
            request_id=f"{state.rollout_id}#{next(self._numbers)}",
            token_ids=tuple(state.token_ids),
            max_tokens=max_tokens,
            temperature=task.sampling.temperature,
            top_p=task.sampling.top_p,
            top_k=task.sampling.top_k,
            min_p=task.sampling.min_p,
            min_tokens=min(max(missing, 0), max_tokens),
            options=task.sampling.options,
            stop_token_ids=self._stops[state.agent.uses_tools],
            seed=request_seed(task.sampling.seed, task.rollout_id, state.turn_start),
        )

    async def _sample(self, state: RolloutState, request: GenerateRequest) -> Finish:
        finish: Finish | None = None
        known = False
        started = self._clock()
        stops = self._turn_stops(state)
        state.request_id = request.request_id
        stream = self._engine.generate(request)
        try:
            async for item in stream:
                if isinstance(item, Finish):
                    finish = item
                    continue
                if append_sampled(state, item, stops=stops):
                    finish = Finish(reason="stop")
                    break
                if state.cut_reason is None:
                    known = True
                elif not known:  # the cut may have come before the engine knew the request
                    await self._engine.interrupt({request.request_id})
        except ValueError as error:
            raise RolloutFailed(
                f"the engine refuses {state.rollout_id} at {len(state.token_ids)} tokens: {error}",
                final=True,
            ) from error
        finally:
            state.request_id = None
            state.generating_s += self._clock() - started
            if close := getattr(stream, "aclose", None):
                await close()
        if finish is None:
            raise EngineFailed(f"the stream of {request.request_id} ended without a finish")
        return finish

    def _end_turn_if_over(self, state: RolloutState) -> bool:
        """Judge the merged turn: what stops it first, then the budgets."""
        tokens, start = state.token_ids, state.turn_start
        in_turn, in_response = room(state)
        last = max(len(tokens) - 1, start)
        if self._turn_stops(state).end(tokens, start=start, begin=last) is not None:
            self._end_turn(state, "stop")
        elif in_response <= 0:
            self._end_turn(state, "length")
        elif in_turn <= 0:
            self._end_turn(state, "max_turn_tokens")
        else:
            return False
        return True

    def _turn_stops(self, state: RolloutState) -> TurnStops:
        return TurnStops(
            token_ids=self._stops[state.agent.uses_tools],
            strings=state.task.sampling.stop,
            min_tokens=state.task.budgets.min_tokens,
            decode=partial(self._renderer.decode, skip_special=False),
        )

    def _end_turn(self, state: RolloutState, reason: TurnEnd) -> None:
        parsed = self._parse(state)
        identity = f"{state.rollout_id}:{state.num_turns}"
        calls = [
            ToolCall(id=f"{identity}:{position}", function=function)
            for position, function in enumerate(parsed.calls)
        ]
        state.turns.append(
            Turn(
                kind=TurnKind.ASSISTANT,
                start=state.turn_start,
                stop=len(state.token_ids),
                finish_reason=reason,
            )
        )
        state.messages.append(
            ChatMessage(role=Speaker.ASSISTANT, content=parsed.content, tool_calls=tuple(calls))
        )
        state.turn_start = len(state.token_ids)
        state.num_turns += 1
        state.num_new_turns += 1
        if reason != "stop":
            terminate(state, RolloutStatus.TRUNCATED, reason)
            return
        phase = state.agent.next_phase(parsed)
        if phase not in _AFTER_A_TURN:
            raise RolloutFailed(f"agent {state.task.agent!r} goes to {phase} after a turn")
        if phase is AgentPhase.TERMINATED:
            terminate(state, RolloutStatus.COMPLETED, "stop")
        elif state.num_turns >= state.task.budgets.max_turns:
            terminate(state, RolloutStatus.TRUNCATED, "max_turns")
        else:
            state.phase = phase
            malformed = [
                unreadable(f"{identity}:{position}", error)
                for position, error in enumerate(parsed.errors, start=len(calls))
            ]
            state.calls = calls + [result.call for result in malformed]
            state.results = {result.call.id: result for result in malformed}

    def _parse(self, state: RolloutState) -> ParsedTurn:
        turn = state.token_ids[state.turn_start :]
        spoken = turn[:-1] if turn and turn[-1] in self._renderer.eos_token_ids else turn
        text = self._renderer.decode(spoken, skip_special=False)
        if not state.agent.uses_tools:
            return ParsedTurn(content=text)
        return self._parser.parse(text, turn)

    async def _process_tools(self, state: RolloutState) -> None:
        names = state.task.tools
        pending = [call for call in state.calls if call.id not in state.results]
        if self._tools.pins(pending, names):
            pin(state, "one of its tools holds what cannot be saved")
        state.answer_limit_s = self._tools.limit_s(pending, names)
        started = self._clock()
        running = self._tools.start(pending, names)
        try:
            if not await unless_cut(state, running.wait()):
                await running.settle()
        finally:
            running.abandon()
            state.answer_limit_s = 0.0
            state.results |= running.results
            state.tools_s += self._clock() - started
        results = record.results_in_order(state)
        if len(results) < len(state.calls):
            return
        state.tool_results += results
        state.calls, state.results = [], {}
        answers = [
            ChatMessage(
                role=Speaker.TOOL,
                content=self._renderer.plain(result.content),
                tool_call_id=result.call.id,
                name=result.call.function.name or None,
            )
            for result in results
        ]
        self._continue_with(state, answers, TurnKind.TOOL)

    async def _interact(self, state: RolloutState) -> None:
        started = self._clock()
        try:
            replied, text = await reply_to(state, unless_cut)
        finally:
            state.answer_limit_s = 0.0
            state.waiting_s += self._clock() - started
        if not replied:
            return
        if text is None:
            terminate(state, RolloutStatus.COMPLETED, "stop")
            return
        answer = ChatMessage(role=Speaker.USER, content=self._renderer.plain(text))
        self._continue_with(state, [answer], TurnKind.USER)

    def _continue_with(
        self, state: RolloutState, answers: Sequence[ChatMessage], kind: TurnKind
    ) -> None:
        """Append answers as a delta, or end the rollout where they leave nothing to sample."""
        last = state.turns[-1]
        delta = self._renderer.delta(answers, ended_by=state.token_ids[last.stop - 1])
        if len(delta) >= room(state)[1]:
            terminate(state, RolloutStatus.TRUNCATED, "length")
            return
        state.messages += answers
        append_unsampled(state, delta, kind)
        state.phase = AgentPhase.GENERATING
