"""A credit becomes the same tasks on every producer; a foreign credit is refused."""

import hashlib
import json

import pytest

from infra.roles.errors import ConfigError
from infra.runs.asked import prompt_hash
from infra.runs.dataset_fingerprint import dataset_fingerprint
from producers import prompts
from producers.books import Books
from producers.rows import DatasetError
from producers.tasks import message_id, task_headers
from schemas.chat import ChatMessage
from schemas.config import RunConfig
from schemas.headers import Purpose
from schemas.work import Credit


@pytest.fixture
def config(tmp_path):
    train, held = tmp_path / "train.jsonl", tmp_path / "eval.jsonl"
    rows = [{"prompt": f"p{n}", "answer": n} for n in range(30)]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held.write_text("".join(json.dumps({"prompt": f"e{n}"}) + "\n" for n in range(6)))
    return RunConfig.model_validate(
        {
            "run": {"name": "t", "steps": 1, "seed": 4},
            "model": {"path": "m"},
            "data": {"train": [{"path": str(train)}], "eval": [{"path": str(held)}]},
            "rollout": {"agent": "tool", "tools": ["calculator"], "top_p": 0.9, "temperature": 0.7},
            "reward": {"functions": [{"use": "exact_match"}]},
            "algorithm": {"group_size": 4},
            "trainer": {"lr": 1e-3},
            "eval": {"prompts": 6, "samples": 2, "temperature": 0.0},
        }
    )


def credit(config, **changes):
    evaluating = changes.get("purpose") is Purpose.EVAL
    values = {
        "group": 3,
        "indexes": (0, 1, 2, 3),
        "dataset_fingerprint": dataset_fingerprint(
            config.data.eval if evaluating else config.data.train
        ),
        "seed": 4,
        "group_size": 2 if evaluating else 4,
    }
    return Credit.model_validate(values | changes)


def tasks_of(books, given):
    return [t for row, m in books.rows_of(given).items() for t in books.tasks(given, row, m)]


def test_a_group_shares_its_prompt_and_its_members_have_fixed_ids(config):
    tasks = tasks_of(Books(config), credit(config, attempt=2, min_version=5))
    assert [task.rollout_id for task in tasks] == ["3.0", "3.1", "3.2", "3.3"]
    assert [task.index for task in tasks] == [0, 1, 2, 3]
    assert len({task.prompt_hash for task in tasks}) == 1
    assert tasks[0].messages[0].content == f"p{tasks[0].row}"
    assert tasks[0].reward_data.ground_truth == tasks[0].row
    assert tasks[0].sampling.model_dump() == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "stop": (),
        "options": {},
        "seed": 4,
    }
    assert tasks[0].tools == ("calculator",)
    headers = task_headers(tasks[1], credit(config, attempt=2, min_version=5), run_id="r")
    assert (headers.group, headers.index, headers.rollout_id) == (3, 1, "3.1")
    assert (headers.attempt, headers.min_version, headers.returns_total) == (2, 5, 0)
    assert message_id(headers) == "RolloutTask:3.1:2:0"


def test_two_producers_make_the_same_bytes(config):
    asked = credit(config, group=77, indexes=(2, 0))
    one, two = (
        [task.model_dump_json() for task in tasks_of(Books(config), asked)] for _ in range(2)
    )
    assert one == two
    assert [json.loads(task)["rollout_id"] for task in one] == ["77.2", "77.0"]


def test_prompt_hash_is_of_canonical_json():
    message = ChatMessage(role="user", content="Zo\u00eb")
    canonical = json.dumps(
        [message.model_dump(mode="json")],
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    assert prompt_hash([message]) == hashlib.sha256(canonical.encode()).hexdigest()


def test_evaluation_members_are_rows_in_file_order(config):
    asked = credit(config, purpose=Purpose.EVAL, group=9, indexes=(0, 1, 5, 11))
    tasks = tasks_of(Books(config), asked)
    assert [(t.rollout_id, t.row, t.messages[0].content) for t in tasks] == [
        ("eval9.0", 0, "e0"),
        ("eval9.1", 0, "e0"),
        ("eval9.5", 2, "e2"),
        ("eval9.11", 5, "e5"),
    ]
    assert {task.sampling.temperature for task in tasks} == {0.0}
    assert {task.purpose for task in tasks} == {Purpose.EVAL}


def test_a_held_out_row_that_does_not_exist(config):
    books = Books(config)
    asked = credit(config, purpose=Purpose.EVAL, indexes=(12,))
    with pytest.raises(DatasetError, match="no row 6: 6 rows"):
        tasks_of(books, asked)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dataset_fingerprint": "0" * 64}, "dataset fingerprint"),
        ({"seed": 5}, "has seed 5, ours is 4"),
        ({"group_size": 8}, "has group size 8, ours is 4"),
        ({"purpose": Purpose.EVAL, "group_size": 3}, "has eval.samples 3, ours is 2"),
    ],
)
def test_a_credit_for_other_data_is_refused(config, change, said):
    with pytest.raises(ConfigError) as caught:
        Books(config).check_credit(credit(config, **change))
    assert said in str(caught.value)


def test_a_credit_of_ours_is_accepted(config):
    books = Books(config)
    books.check_credit(credit(config))
    books.check_credit(credit(config, purpose=Purpose.EVAL))


def test_more_evaluation_prompts_than_rows(config):
    asked = config.model_copy(update={"eval": config.eval.model_copy(update={"prompts": 7})})
    with pytest.raises(ConfigError, match=r"eval\.prompts=7, but data\.eval has 6 rows"):
        Books(asked)


def test_check_reads_the_first_rows(config, tmp_path):
    lines = prompts.check(config)
    assert lines[0].startswith("data.train: 30 rows;")
    assert "'e0'" in lines[1]
    (tmp_path / "train.jsonl").write_text('{"question": "x"}\n')
    with pytest.raises(ConfigError, match=r"train\.jsonl:1: no prompt"):
        prompts.check(config)


def test_the_first_task_is_row_0_of_the_training_data(config, tmp_path):
    task = prompts.first_task(config)
    assert (task.row, task.messages[0].content, task.rollout_id) == (0, "p0", "0.0")
    (tmp_path / "train.jsonl").write_text("broken\n")
    with pytest.raises(ConfigError, match=r"train\.jsonl:1: not JSON"):
        prompts.first_task(config)
