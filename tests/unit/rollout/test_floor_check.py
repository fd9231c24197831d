"""`check` and `prompt_ids`: what the front door asks of the worker before a run."""

from pathlib import Path

import pytest

from consumers.rollout.worker import check, prompt_ids
from infra.roles.errors import ConfigError
from infra.text.renderer import Renderer
from schemas.chat import ChatMessage, Speaker
from schemas.config import RunConfig
from tests.factories.rollouts import chatml_folder, make_task
from tests.unit.rollout.worker_fakes import config


def recipe(folder: Path, **rollout: object) -> RunConfig:
    made = config(folder, **rollout)
    return made.model_copy(
        update={"model": made.model.model_copy(update={"path": str(folder / "chatml")})}
    )


def test_check_names_what_it_found(tmp_path: Path) -> None:
    chatml_folder(tmp_path / "chatml")
    lines = check(recipe(tmp_path, agent="tool", tools=["calculator"]))
    assert any("chat template fits the agent" in line for line in lines)
    assert any("agent tool, parser hermes, tools: calculator" in line for line in lines)


@pytest.mark.parametrize(
    "rollout",
    [
        {"engine": "sglang"},
        {"agent": "no_such_agent"},
        {"parser": "no_such_parser"},
        {"tools": ["no_such_tool"]},
        {"agent": "consumers.rollout.limits:Limits"},
    ],
)
def test_check_refuses_names_that_lead_nowhere(tmp_path: Path, rollout: dict[str, object]) -> None:
    chatml_folder(tmp_path / "chatml")
    with pytest.raises(ConfigError):
        check(recipe(tmp_path, **rollout))


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    chatml_folder(tmp_path / "chatml")
    (tmp_path / "file").write_text("")
    made = recipe(tmp_path)
    weights = made.weights.model_copy(update={"cache": str(tmp_path / "file" / "cache")})
    with pytest.raises(ConfigError, match=r"cannot write to .*file/cache"):
        check(made.model_copy(update={"weights": weights}))


def test_tools_that_the_agent_has_no_use_for_are_refused(tmp_path: Path) -> None:
    chatml_folder(tmp_path / "chatml")
    with pytest.raises(ConfigError, match="agent 'single_turn' uses none"):
        check(recipe(tmp_path, tools=["calculator"]))


USER_ONLY = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_the_template_must_know_who_answers_the_agent_and_nobody_else(tmp_path: Path) -> None:
    chatml_folder(tmp_path / "chatml", template=USER_ONLY)
    check(recipe(tmp_path))
    with pytest.raises(ConfigError, match="no tools here"):
        check(recipe(tmp_path, agent="tool"))


def test_check_refuses_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "chatml").mkdir()
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        check(recipe(tmp_path))


def test_prompt_ids_are_what_the_template_writes(tmp_path: Path) -> None:
    renderer = Renderer.load(chatml_folder(tmp_path / "chatml"))
    task = make_task(
        "0.0",
        agent="single_turn",
        messages=(ChatMessage(role=Speaker.USER, content="2+2?"),),
    )
    text = renderer.decode(prompt_ids(recipe(tmp_path), task), skip_special=False)
    assert text == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
