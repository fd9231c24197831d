"""What is wrong before a run begins: `run.py` says what, where and what to do, and exits."""

import shutil
import socket
from pathlib import Path

import pytest

from infra.recipes.demo.task import split
from tests.e2e.runs import finish, rows, write_recipe

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("steps = 6", "steps = ", "recipe.toml:4:9: not valid TOML: Invalid value: 'steps ='"),
        ("slots = 8", "slot = 8", "unknown key 'rollout.slot'; did you mean 'slots'?"),
        (
            "steps = 6",
            'steps = "six"',
            'recipe.toml:4: run.steps = "six": expected a valid integer',
        ),
    ],
)
def test_a_recipe_that_cannot_be_read(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    recipe = write_recipe(tmp_path, "unread", model="none")
    text = recipe.read_text()
    assert before in text
    recipe.write_text(text.replace(before, after))
    for command in ("check", "up", "trainer"):
        code, output = finish(tmp_path, command, str(recipe))
        assert code == 2
        assert message in output
        assert "Traceback" not in output
    assert not (tmp_path / "runs").exists()


def test_check_names_all_that_is_missing(tmp_path: Path, untaught_folder: Path) -> None:
    weightless = tmp_path / "weightless"
    shutil.copytree(untaught_folder, weightless, ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "plain").write_text("a file")
    recipe = write_recipe(tmp_path, "missing", model=weightless, reward="exact_mach")
    code, output = finish(
        tmp_path,
        *("check", str(recipe), "data.train.0.path=none.jsonl", "weights.store=plain/weights"),
        "broker.url=amqp://u:geheim@127.0.0.1:9/",
    )
    assert code == 2
    for said in (
        f"FAILED  model         {weightless} has no weights (*.safetensors)",
        "FAILED  broker        no broker answers at 127.0.0.1:9",
        f"FAILED  weight store  cannot write the weight store {tmp_path}/plain/weights",
        "FAILED  producer      cannot read dataset none.jsonl: No such file or directory",
        "FAILED  reward        unknown reward 'exact_mach'; did you mean 'exact_match'?",
        "skipped trainer       needs model\n",
        "FAILED: broker, model, weight store, producer, reward; 4 skipped\n",
    ):
        assert said in output
    assert "geheim" not in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("row", "reward", "messages"),
    [
        (
            {"text": "1+1"},
            "alternating",
            ["FAILED  producer      train.jsonl:1: no prompt: the row has the columns text"],
        ),
        (
            {"prompt": "A:12+34=?" * 3, "ground_truth": "046"},
            "always_raises",
            [
                "the prompt of row 0 has 27 tokens, rollout.max_prompt_tokens is 16",
                "FAILED  gold answer   reward 'tests.e2e.plugs:always_raises': "
                "LookupError: nothing is ever right",
            ],
        ),
        (
            rows(1)[0],
            "never_returns",
            [
                "FAILED  gold answer   reward 'tests.e2e.plugs:never_returns' did not return in "
                "3 s and was killed"
            ],
        ),
    ],
)
def test_check_tries_the_first_row(
    tmp_path: Path, untaught_folder: Path, row: dict, reward: str, messages: list[str]
) -> None:
    recipe = write_recipe(
        tmp_path,
        "row",
        model=untaught_folder,
        data=[row],
        reward=f"tests.e2e.plugs:{reward}",
        reward_timeout=3,
    )
    code, output = finish(tmp_path, "check", str(recipe))
    assert code == 2
    for message in messages:
        assert message in output
    assert "Traceback" not in output


def test_the_demos_own_answer_scores_one(tmp_path: Path, untaught_folder: Path) -> None:
    recipe = write_recipe(
        tmp_path, "gold", model=untaught_folder, reward="infra.recipes.demo.reward:exact_sum"
    )
    code, output = finish(tmp_path, "check", str(recipe))
    assert code == 0, output
    assert f"the answer of row 0, {split()[0][0].answer!r}, scores 1\n" in output


@pytest.mark.parametrize("listens", [False, True])
def test_a_broker_that_is_down_and_a_port_that_is_taken(tmp_path: Path, listens: bool) -> None:
    recipe = write_recipe(tmp_path, "down", model="none")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if listens:
            taken.listen()
        url = f"amqp://u:geheim@127.0.0.1:{taken.getsockname()[1]}/"
        code, output = finish(tmp_path, "up", str(recipe), url=url)
    reason = "something listens there that does not answer as a broker"
    assert code == 3
    assert "no broker answers at 127.0.0.1:" in output
    assert (reason in output) == listens
    assert "-> start it, or correct [broker] url or WARREN_BROKER_URL" in output
    assert "geheim" not in output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "data.train.0.path=none.jsonl",
            "cannot read dataset none.jsonl: No such file or directory",
        ),
        ("weights.store=plain/weights", "plain/weights"),
        ("model.path=weightless", "weightless has no weights"),
        ("rollout.engine=sglang", "rollout.engine is 'sglang'"),
        (
            'reward.functions=[{use="tests.e2e.plugs:altenating"}]',
            "tests.e2e.plugs has no 'altenating'\n",
        ),
    ],
)
def test_a_run_that_cannot_begin_is_refused_and_leaves_nothing(
    tmp_path: Path, untaught_folder: Path, override: str, message: str
) -> None:
    (tmp_path / "plain").write_text("a file")
    shutil.copytree(
        untaught_folder, tmp_path / "weightless", ignore=shutil.ignore_patterns("*.safetensors")
    )
    recipe = write_recipe(tmp_path, "hopeless", model=untaught_folder)
    code, output = finish(tmp_path, "up", str(recipe), override)
    assert code == 2, output
    assert output.count(message) == 1
    assert "Traceback" not in output
    assert not (tmp_path / "runs").exists()
