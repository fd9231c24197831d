"""The storm's recipe: its plug-ins, what it starts from, and that it is a recipe."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors import safe_open

from consumers.rollout.engines.build import check_engine
from infra.recipes.demo.task import CALL, CALL_END, EOS, SYMBOLS, VOCABULARY_SIZE
from infra.recipes.demo.tokenizer import build_tokenizer
from infra.recipes.demo.tool import add
from infra.recipes.storm.calls import AnyCall
from infra.recipes.storm.prepare import NUM_PROMPTS, prepare
from infra.recipes.storm.reward import lower_half
from infra.roles.settings import load_config

RECIPE = Path(__file__).resolve().parents[4] / "infra/recipes/storm.toml"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp("runs"))


def test_the_recipe_is_one_and_another_engine_runs_it():
    simulated = load_config(RECIPE, [])
    check_engine(simulated)
    real = load_config(RECIPE, ["rollout.engine=transformers", "rollout.engine_options={}"])
    check_engine(real)
    assert (simulated.rollout.engine, real.rollout.engine) == ("simulated", "transformers")
    assert simulated.supervise.leavers
    assert simulated.broker.heartbeat <= 5


def test_the_model_is_tiny_and_the_prompts_are_there(prepared):
    with safe_open(prepared / "model/model.safetensors", "pt") as file:
        sizes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    assert [VOCABULARY_SIZE, 32] in sizes
    rows = [json.loads(line) for line in (prepared / "train.jsonl").read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == len(rows) == NUM_PROMPTS


def test_it_is_made_once(prepared):
    before = (prepared / "model/model.safetensors").stat().st_mtime_ns
    assert prepare(prepared.parent) == prepared
    assert (prepared / "model/model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in prepared.parent.iterdir()] == [prepared.name]


@pytest.mark.parametrize(
    ("sampled", "reward"),
    [([], 0.0), ([1], 1.0), ([40], 0.0), ([1, 40], 0.5), ([1, 40, 41], 0.375), ([31, 32], 0.5)],
)
def test_the_reward_is_the_share_of_low_tokens_in_eighths(sampled, reward):
    """By hand: 1/3 is 2.67 eighths. Prompt tokens, here all low, do not count."""
    rollout = SimpleNamespace(
        token_ids=[1, 2, *sampled], mask=[0, 0, *[1 for _ in sampled]], rollout_id="0.0"
    )
    assert lower_half(rollout) == reward


def test_any_turn_with_the_closing_tag_is_a_call():
    parser = AnyCall()
    for text in (f"12{CALL}3{CALL_END}", CALL_END, f"1+2{CALL_END}"):
        parsed = parser.parse(text, ())
        assert [call.name for call in parsed.calls] == ["add"]
        expression = json.loads(parsed.calls[0].arguments)["expression"]
        assert expression == text.removesuffix(CALL_END)
    for text in ("1+2", f"{CALL_END}1", ""):
        assert (parser.parse(text, ()).calls, parser.parse(text, ()).content) == ((), text)


def test_the_calculator_answers_anything_with_three_tokens():
    """So the length of a rollout does not depend on what was asked, which versions change."""
    tokenizer = build_tokenizer()
    for asked in ("12+34", "", "99+99", "rubbish", "".join(SYMBOLS), f"{EOS}{CALL}"):
        answer = asyncio.run(add(asked))
        assert len(tokenizer.encode(answer, add_special_tokens=False)) == 3
