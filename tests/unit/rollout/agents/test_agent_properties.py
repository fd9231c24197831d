"""Any conversation, any chunking, any cuts, any budgets: the result is the same."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.rollout.agents.state import CutReason
from tests.factories.agent_runs import (
    CALL,
    OPENING,
    cut_places,
    essence,
    make_loop,
    run_uncut,
    run_with_cuts,
)
from tests.factories.rollouts import ScriptedEngine, make_task, talk

pieces = st.one_of(
    st.text(alphabet='the sum\n{}"é<>', max_size=8),
    st.builds(lambda a, b: CALL.format(f"{a}*{b}"), st.integers(0, 99), st.integers(0, 99)),
    st.sampled_from(["<tool_call>", "</tool_call>", "<tool_call>{}</tool_call>", "<think>"]),
)
turns = st.lists(pieces, max_size=5).map(lambda parts: "".join(parts) + "<|im_end|>")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_cuts_leave_no_trace(renderer, data):
    said = [*data.draw(st.lists(turns, min_size=1, max_size=4)), "end<|im_end|>"]
    task = make_task(
        tools=("calculator",),
        max_response_tokens=data.draw(st.sampled_from([17, 120, 400, 2000])),
        max_turn_tokens=data.draw(st.sampled_from([9, 60, 500])),
        max_turns=data.draw(st.integers(1, 5)),
    )
    chunk = data.draw(st.integers(1, 9))
    script = talk(renderer, said, opening=OPENING)

    async def compare():
        whole = await run_uncut(make_loop(ScriptedEngine(script), renderer), task)
        places = cut_places(whole)
        cuts = sorted(data.draw(st.sets(st.sampled_from(places), max_size=4)))
        reason = data.draw(st.sampled_from(list(CutReason)))
        cut = await run_with_cuts(task, script, renderer, cuts, chunk=chunk, reason=reason)
        assert essence(cut) == essence(whole)
        response = len(whole.progress.tokens) - whole.progress.num_prompt_tokens
        assert response <= task.budgets.max_response_tokens
        assert whole.progress.turns[-1].stop == len(whole.progress.tokens)

    asyncio.run(compare())
