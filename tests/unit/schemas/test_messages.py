import orjson
import pytest
from pydantic import BaseModel, ValidationError

from schemas.chat import ChatMessage, Speaker
from schemas.config import RunConfig
from schemas.control import Command, Heartbeat, RunState, WeightFile, WeightsPublished
from schemas.headers import Headers, Purpose
from schemas.tokens import Tokens
from schemas.work import (
    AgentPhase,
    Budgets,
    Credit,
    Failure,
    FailureKind,
    Progress,
    Rollout,
    RolloutStatus,
    RolloutTask,
    Sampling,
    Snapshot,
    Trajectory,
    Turn,
    TurnKind,
)

TASK = RolloutTask(
    rollout_id="7.3",
    group=7,
    index=3,
    row=12,
    agent="tool",
    messages=(ChatMessage(role=Speaker.USER, content="A:37+58=?"),),
    prompt_hash="ab",
    sampling=Sampling(),
    budgets=Budgets(max_prompt_tokens=16, max_response_tokens=16, max_turn_tokens=8, max_turns=2),
)
PROGRESS = Progress(
    num_prompt_tokens=2,
    turns=(
        Turn(kind=TurnKind.PROMPT, start=0, stop=2),
        Turn(kind=TurnKind.ASSISTANT, start=2, stop=4, finish_reason="stop"),
    ),
    tokens=Tokens(
        mask=((0, 2), (1, 2)),
        versions=((-1, 2), (0, 2)),
        token_ids=[1, 2, 3, 4],
        logprobs=[0, 0, -1, -1],
    ),
)
ROLLOUT = Rollout(
    rollout_id="7.3",
    group=7,
    index=3,
    purpose=Purpose.TRAIN,
    row=12,
    status=RolloutStatus.COMPLETED,
    finish_reason="stop",
    worker="rollout-1",
    agent="tool",
    prompt_hash="ab",
    reward_data=TASK.reward_data,
    progress=PROGRESS,
)
MESSAGES: list[BaseModel] = [
    Credit(group=7, indexes=(0, 1), dataset_fingerprint="f", seed=0, group_size=2),
    TASK,
    Snapshot(
        task=TASK,
        phase=AgentPhase.GENERATING,
        worker="rollout-1",
        turn_start=2,
        num_turns=0,
        progress=PROGRESS,
    ),
    ROLLOUT,
    Trajectory(rollout=ROLLOUT, reward=1.0, rewards={"exact": 1.0}),
    Failure(stage="reward", kind=FailureKind.DATA, error="ZeroDivisionError"),
    WeightsPublished(
        run_id="r",
        version=0,
        incarnation=1,
        step=0,
        folder="v0",
        full=(WeightFile(name="model.safetensors", size_bytes=1, sha256="0" * 64),),
        fingerprint="f",
    ),
    RunState(run_id="r", number=1),
    Command(run_id="a", verb="pause", number=1),
    Heartbeat(role="rollout", worker="rollout-1", host="h", pid=1, state="running"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_round_trip(message: BaseModel) -> None:
    body = orjson.dumps(message.model_dump(mode="json"))
    assert type(message).model_validate(orjson.loads(body)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_unknown_keys_and_schema_versions_are_refused(message: BaseModel) -> None:
    values = message.model_dump(mode="json")
    with pytest.raises(ValidationError, match="Extra inputs"):
        type(message).model_validate(values | {"surprise": 1})
    with pytest.raises(ValidationError, match="schema_version"):
        type(message).model_validate(values | {"schema_version": 2})


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_are_frozen(message: BaseModel) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        message.schema_version = 1  # type: ignore[attr-defined]


def test_arrays_come_last_so_that_an_admin_can_read_the_rest() -> None:
    body = orjson.dumps(MESSAGES[4].model_dump(mode="json"))
    assert body.index(b'"reward"') < body.index(b'"rollout_id"') < body.index(b'"token_ids"')
    assert body.endswith(b'"}}}}')


def test_turns_must_tile_the_tokens() -> None:
    with pytest.raises(ValidationError, match="does not continue"):
        Progress(
            num_prompt_tokens=2,
            turns=(Turn(kind=TurnKind.PROMPT, start=1, stop=2),),
            tokens=PROGRESS.tokens,
        )


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", ".hidden", "a/b", ""])
def test_weight_files_cannot_leave_their_folder(name: str) -> None:
    with pytest.raises(ValidationError, match="pattern"):
        WeightFile(name=name, size_bytes=1, sha256="0" * 64)


def test_headers_ignore_what_is_not_ours() -> None:
    headers = Headers(run_id="r", group=3, rollout_id="3.0", purpose=Purpose.EVAL)
    table: dict[str, object] = {**headers.to_amqp(), "x-death": [], "checksum": "c"}
    assert Headers.from_amqp(table) == headers
    assert headers.to_amqp() == {
        "run_id": "r",
        "group": 3,
        "rollout_id": "3.0",
        "purpose": "eval",
    }, "a default is not repeated"
    with pytest.raises(ValidationError, match="run_id"):
        Headers.from_amqp({"group": 3})


def recipe(**algorithm: object) -> dict[str, object]:
    return {
        "run": {"name": "t", "steps": 1},
        "model": {"path": "m"},
        "data": {"train": [{"path": "d.jsonl"}]},
        "reward": {"functions": [{"use": "exact_match"}]},
        "trainer": {"lr": 1e-3},
        "algorithm": algorithm,
    }


def test_lag_must_hold_staleness() -> None:
    RunConfig.model_validate(recipe(max_staleness=0.5, max_version_lag=1))
    with pytest.raises(ValidationError, match="use at least 2"):
        RunConfig.model_validate(recipe(max_staleness=1.5, max_version_lag=1))


def test_min_group_cannot_exceed_group() -> None:
    with pytest.raises(ValidationError, match="min_group_size=9"):
        RunConfig.model_validate(recipe(group_size=8, min_group_size=9))


def every_field(model: type[BaseModel]) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for name, field in model.model_fields.items():
        found.append((f"{model.__name__}.{name}", field.description))
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += every_field(inner)
    return found


def test_every_recipe_key_is_documented() -> None:
    undocumented = [
        name
        for name, text in every_field(RunConfig)
        if not text and not name.startswith("RunConfig.")
    ]
    assert undocumented == []


@pytest.mark.parametrize("name", ["../7.3", "7/3", "7 3", "7.3\n", "9" * 65])
def test_an_id_that_names_more_than_a_rollout_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="rollout_id"):
        Headers.from_amqp({"run_id": "r", "group": 7, "rollout_id": name})


def test_whatever_an_error_says_its_failure_fits_into_a_message() -> None:
    failure = Failure(
        stage="reward",
        kind=FailureKind.DATA,
        error="lone \ud800" + "e" * 10_000_000,
        traceback="t" * 10_000_000 + "the last line \udfff",
    )
    assert len(failure.error) == 4_000 and failure.error.startswith("lone ?e")
    assert len(failure.traceback) == 20_000 and failure.traceback.endswith("the last line ?")
    assert len(orjson.dumps(failure.model_dump(mode="json"))) < 30_000
