"""A call format with a stop token of its own, one token per character, no turn markers."""

import json

import pytest

from consumers.rollout.parsers.base import ParsedTurn
from consumers.rollout.tools.box import ToolBox
from consumers.rollout.tools.tool import tool
from infra.text.renderer import Renderer
from schemas.chat import ChatMessage, FunctionCall, Speaker
from tests.factories.agent_runs import cut_places, essence, make_loop, run_uncut, run_with_cuts
from tests.factories.rollouts import ScriptedEngine, compact_folder, make_task


@tool
def add(expression: str) -> str:
    """Add two numbers."""
    left, right = expression.split("+")
    return f"{int(left) + int(right):03d}"


class TagParser:
    def stop_token_ids(self, renderer):
        return frozenset(renderer._encode("</call>"))

    def parse(self, text, token_ids):
        content, _, rest = text.partition("<call>")
        if not rest.endswith("</call>"):
            return ParsedTurn(content=text)
        arguments = json.dumps({"expression": rest.removesuffix("</call>")})
        return ParsedTurn(content=content, calls=(FunctionCall(name="add", arguments=arguments),))


@pytest.fixture(scope="module")
def compact(tmp_path_factory) -> Renderer:
    return Renderer.load(compact_folder(tmp_path_factory.mktemp("compact")))


def script_of(compact, prompt):
    said = compact._encode(f"{prompt}<call>37+58</call><res>095</res>095<eos>")
    return lambda token_ids: said[len(token_ids)]


async def test_the_compact_format_over_every_cut(compact):
    prompt = "A:37+58=?"
    task = make_task(
        tools=("add",),
        messages=(ChatMessage(role=Speaker.USER, content=prompt),),
        max_response_tokens=18,
    )
    parts = {"parser": TagParser(), "tools": ToolBox({"add": add})}
    script = script_of(compact, prompt)
    whole = await run_uncut(make_loop(ScriptedEngine(script), compact, **parts), task)
    tokens = whole.progress.tokens
    text = compact.decode(tokens.token_ids.tolist(), skip_special=False)
    assert text == "A:37+58=?<call>37+58</call><res>095</res>095<eos>"
    assert tokens.mask == ((0, 9), (1, 7), (0, 5), (1, 4))
    assert whole.status == "completed"
    places = cut_places(whole)
    for place in places:
        rollout = await run_with_cuts(task, script, compact, [place], **parts)
        assert essence(rollout) == essence(whole), place
    rollout = await run_with_cuts(task, script, compact, places, **parts)
    assert essence(rollout) == essence(whole)
