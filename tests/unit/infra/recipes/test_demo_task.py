"""The task, its parser, tool, reward and tokenizer agree with each other, token for token."""

import asyncio
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.reward.view import RolloutView
from consumers.rollout.tools.box import ToolBox
from infra.recipes.demo.calls import CompactCalls
from infra.recipes.demo.reward import exact_sum
from infra.recipes.demo.task import (
    NUM_EVAL,
    SYMBOLS,
    TOKEN_IDS,
    VOCABULARY_SIZE,
    Problem,
    calculate,
    encode,
    is_solved,
    split,
)
from infra.recipes.demo.tokenizer import save_tokenizer
from infra.roles.registry import resolve
from infra.text.renderer import Renderer
from schemas.chat import ChatMessage, ToolCall

CALL = ["<call>", *"37+58", "</call>"]
RESULT = ["<res>", *"095", "</res>"]
ANSWER = [*"095", "<eos>"]


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_tokenizer(folder)
    return Renderer.load(folder)


def test_symbols_are_as_many_as_the_vocabulary():
    assert len(SYMBOLS) == len(set(SYMBOLS)) == VOCABULARY_SIZE
    assert [TOKEN_IDS[s] for s in ("<pad>", "<bos>", "<eos>", "0", "9")] == [0, 1, 2, 3, 12]


def test_a_problem_is_written_in_fixed_width():
    problem = Problem(3, 58)
    assert (problem.prompt, problem.answer) == ("A:03+58=?", "061")
    assert Problem(99, 99).answer == "198"


def test_training_and_held_out_problems_are_all_and_disjoint():
    train, held_out = split()
    assert len(held_out) == NUM_EVAL
    assert len(train) == 10_000 - NUM_EVAL
    assert len({problem.prompt for problem in (*train, *held_out)}) == 10_000


@given(st.integers(0, 99), st.integers(0, 99))
def test_the_calculator_adds(left, right):
    assert int(calculate(f"{left}+{right}")) == left + right
    assert calculate(f"{left:02d}+{right:02d}") == Problem(left, right).answer


@pytest.mark.parametrize(
    "text",
    ["", "+", "1+", "+1", "123+4", "1+2+3", "1-2", "a+b", "1+\u0662", " 1+2", "1+2 ", "-1+2"],
)
def test_the_calculator_knows_nothing_else(text):
    assert calculate(text) == "???"


@pytest.mark.parametrize(
    ("response", "solved"),
    [
        ([*CALL, *RESULT, *ANSWER], True),
        (ANSWER, True),
        ([*CALL, *RESULT, *"095"], False),
        ([*CALL, *RESULT, *"095", "0", "<eos>"], False),
        ([*CALL, *RESULT, *"096", "<eos>"], False),
        ([*CALL, *RESULT, "<eos>"], False),
        ([*"095", *RESULT], False),
        ([*CALL, *RESULT, *CALL], False),
        ([], False),
    ],
)
def test_what_counts_as_solved(response, solved):
    assert is_solved(encode(response), "095") is solved


def test_every_symbol_is_one_token_and_comes_back(renderer):
    text = "".join(SYMBOLS)
    assert renderer.prompt([ChatMessage(role="user", content=text)], ()) == list(range(64))
    assert renderer.decode(list(range(64)), skip_special=False) == text
    assert renderer.eos_token_ids == {2}


def test_the_prompt_is_nine_tokens(renderer):
    tokens = renderer.prompt([ChatMessage(role="user", content="A:37+58=?")], ())
    assert tokens == encode("A:37+58=?")
    assert len(tokens) == 9


def test_the_calculators_answer_is_five_tokens(renderer):
    answer = ChatMessage(role="tool", content="095", tool_call_id="0.0:0:0", name="add")
    assert renderer.delta([answer], ended_by=TOKEN_IDS["</call>"]) == encode(RESULT)


def test_the_template_only_appends(renderer):
    renderer.check()


def test_a_call_ends_its_turn(renderer):
    parser = CompactCalls()
    assert parser.stop_token_ids(renderer) == {TOKEN_IDS["</call>"]}
    turn = parser.parse("<call>37+58</call>", encode(CALL))
    assert turn.content == ""
    assert [call.name for call in turn.calls] == ["add"]
    assert json.loads(turn.calls[0].arguments) == {"expression": "37+58"}


@pytest.mark.parametrize("text", ["095", "<call>37+58", "37+58</call>", "", "<call></call>x"])
def test_what_is_no_call(text):
    turn = CompactCalls().parse(text, ())
    assert (turn.content, turn.calls, turn.errors) == (text, (), ())


def test_only_the_text_behind_the_first_opening_counts():
    turn = CompactCalls().parse('7<call>1"<call>2</call>', ())
    assert turn.content == "7"
    assert json.loads(turn.calls[0].arguments) == {"expression": '1"<call>2'}


@pytest.mark.parametrize(("expression", "said"), [("37+58", "095"), ("junk", "???"), ("", "???")])
async def test_parser_and_tool_fit(expression, said):
    name = "infra.recipes.demo.tool:add"
    box = ToolBox.load([name])
    function = CompactCalls().parse(f"<call>{expression}</call>", ()).calls[0]
    running = box.start([ToolCall(id="0.0:0:0", function=function)], [name])
    async with asyncio.timeout(5):
        await running.wait()
    assert [(r.content, r.ok) for r in running.results.values()] == [(said, True)]


def test_plug_ins_are_found_by_the_names_in_the_recipe():
    assert resolve("parser", "infra.recipes.demo.calls:CompactCalls") is CompactCalls
    assert resolve("reward", "infra.recipes.demo.reward:exact_sum") is exact_sum


def rollout_json(response, *, called):
    from schemas.tokens import Tokens

    prompt = encode("A:37+58=?")
    length = len(prompt) + len(response)
    tokens = Tokens(
        token_ids=prompt + encode(response),
        mask=((0, length),),
        versions=((-1, length),),
        logprobs=[0.0] * length,
    )
    return {
        "reward_data": {"data_source": "demo", "ground_truth": "095", "extra_info": {}},
        "progress": {
            "num_prompt_tokens": len(prompt),
            "tool_results": [{}] if called else [],
            "tokens": orjson.loads(tokens.model_dump_json()),
        },
    }


def test_reward_looks_at_the_tokens():
    asked = RolloutView(rollout_json([*CALL, *RESULT, *ANSWER], called=True))
    guessed = RolloutView(rollout_json([*"096", "<eos>"], called=False))
    assert exact_sum(asked) == {"score": 1.0, "called": 1.0}
    assert exact_sum(guessed) == {"score": 0.0, "called": 0.0}
