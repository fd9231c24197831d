"""Recipes and overrides: what comes out, and what is said when they are wrong."""

from pathlib import Path
from typing import Any

import pytest

from infra.roles.command.toml_text import to_toml
from infra.roles.errors import ConfigError
from infra.roles.settings import apply_override, load_config, parse_value

GOOD = """\
[run]
name = "good"
steps = 10

[model]
path = "m"

[[data.train]]
path = "a.jsonl"
columns = { prompt = "the question" }

[[data.train]]
path = "b.jsonl"
weight = 2

[rollout]
engine_options = { a = 1, deep = { b = [1, 2] } }
tools = ["calculator"]

[reward]
functions = [{ use = "exact" }, { use = "my:own", weight = 0.5 }]

[trainer]
lr = 1e-3
"""


def write(folder: Path, text: str, name: str = "recipe.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def complaint(path: Path | str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_recipe_with_overrides(tmp_path: Path) -> None:
    overrides = ["rollout.slots=4", "trainer.betas=[0.8, 0.9]", "data.train.1.path=c.jsonl"]
    config = load_config(write(tmp_path, GOOD), [*overrides, "rollout.slots=8"])
    assert config.rollout.slots == 8
    assert config.trainer.betas == (0.8, 0.9)
    assert [source.path for source in config.data.train] == ["a.jsonl", "c.jsonl"]


def test_the_resolved_recipe_reads_back_the_same(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    assert load_config(write(tmp_path, to_toml(config), "again.toml")) == config
    assert load_config(write(tmp_path, config.model_dump_json(), "config.json")) == config


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 1e-3),
        ("true", True),
        ('"3"', "3"),
        ("[1, 2]", [1, 2]),
        ("{ a = 1 }", {"a": 1}),
        ("models/x", "models/x"),
        ("", ""),
        ("amqp://u:p@h/", "amqp://u:p@h/"),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_override_values(text: str, value: Any) -> None:
    assert parse_value(text) == value


def test_overrides_make_sections() -> None:
    tree: dict[str, Any] = {}
    apply_override(tree, "rollout.engine_options.cache_gb=2")
    assert tree == {"rollout": {"engine_options": {"cache_gb": 2}}}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.steps", "not an override: 'run.steps'"),
        ("run..steps=1", "not an override"),
        ("run.name.x=1", "run.name is a value, not a section"),
        ("data.train.7.path=x", "data.train has 2 entries, not '7'"),
    ],
)
def test_broken_overrides(tmp_path: Path, override: str, message: str) -> None:
    assert message in complaint(write(tmp_path, GOOD), override)


def test_broken_toml_is_placed(tmp_path: Path) -> None:
    path = write(tmp_path, '[run]\nname = "x"\nsteps = 10 20\n')
    said = complaint(path)
    assert said.startswith(f"{path}:3:12: not valid TOML: ")
    assert "steps = 10 20" in said
    end = complaint(write(tmp_path, '[run]\nname = "x', "end.toml"))
    assert "end.toml:2:" in end


def test_an_unknown_key_is_placed_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "warmup_step = 3\n")
    said = complaint(path)
    line = GOOD.count("\n") + 1
    assert f"{path}:{line}: unknown key 'trainer.warmup_step'; did you mean 'warmup_steps'?" in said
    assert "[trainer] takes: lr, warmup_steps" in said


def test_an_unknown_section_and_a_key_in_a_list(tmp_path: Path) -> None:
    said = complaint(write(tmp_path, GOOD + "\n[rolout]\nslots = 1\n"))
    assert "unknown key 'rolout'; did you mean 'rollout'?" in said
    said = complaint(write(tmp_path, GOOD.replace("weight = 2", "wieght = 2")))
    assert "unknown key 'data.train.1.wieght'; did you mean 'weight'?" in said


def test_a_wrong_type_names_key_value_and_expectation(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("steps = 10", 'steps = "ten"'))
    assert f'{path}:3: run.steps = "ten": expected a valid integer' in complaint(path)
    said = complaint(write(tmp_path, GOOD), "rollout.on_sync=wait")
    assert "override 'rollout.on_sync=wait': rollout.on_sync = \"wait\": expected" in said
    assert "'republish', 'in_flight' or 'drain'" in said
    assert "What happens to running rollouts" in said
    said = complaint(write(tmp_path, GOOD), "rollout.tools=mine:search")
    assert 'rollout.tools = "mine:search": expected a list' in said


def test_missing_keys_and_several_problems(tmp_path: Path) -> None:
    said = complaint(write(tmp_path, GOOD.replace("lr = 1e-3", "").replace('name = "good"', "")))
    assert "missing key 'run.name'" in said
    assert "missing key 'trainer.lr'" in said
    assert "(2 problems)" in said


def test_keys_that_do_not_fit_together(tmp_path: Path) -> None:
    said = complaint(write(tmp_path, GOOD), "algorithm.min_group_size=9")
    assert "algorithm.min_group_size=9 exceeds algorithm.group_size=8" in said
    for most in ("max_turn_tokens", "max_response_tokens"):
        said = complaint(write(tmp_path, GOOD), "rollout.min_tokens=9", f"rollout.{most}=8")
        assert f"rollout.min_tokens=9 exceeds rollout.{most}=8" in said


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("run.name='a b'", "a text like ^[A-Z"),
        ("rollout.stop=['']", "a text that is not empty\n  -> stop: Strings"),
        ("reward.functions=[]", "at least 1 of them"),
        ("trainer.betas=[0.9]", "one value more"),
        ("trainer.betas=[0.9, 0.9, 0.9]", "at most 2 of them"),
        ("rollout.sampling_options=3", "a table"),
        ("rollout=3", "a table"),
        ("data.train=[3]", "a table"),
    ],
)
def test_what_would_be_right_is_said_in_words_of_recipes(
    tmp_path: Path, override: str, expected: str
) -> None:
    assert f": expected {expected}" in complaint(write(tmp_path, GOOD), override)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("config.json", "[" * 200_000, "nested too deep"),
        ("config.json", '{"run":' * 200_000, "nested too deep"),
        ("config.json", f'{{"run": {{"steps": {"9" * 5000}}}}}', "a number in it cannot be read"),
        ("deep.toml", f"a = {'[' * 20_000}", "nested too deep"),
        ("big.toml", f"[run]\nsteps = {'9' * 5000}", "a number in it cannot be read"),
    ],
)
def test_nesting_and_numbers_without_end_are_refused(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    assert f"{tmp_path / name}: " in complaint(write(tmp_path, text, name))
    assert reason in complaint(tmp_path / name)


def test_a_value_nested_too_deep_to_be_shown_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dumps(*_args: object, **_options: object) -> str:
        raise RecursionError

    path = write(tmp_path, GOOD)
    monkeypatch.setattr("infra.roles.settings.json.dumps", dumps)
    assert "run.steps = nested too deep to be shown" in complaint(path, "run.steps=[[]]")


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 20_000])
def test_an_override_without_end_is_a_text(value: str) -> None:
    assert parse_value(value) == value


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    said = complaint(tmp_path / "nothing.toml")
    assert "no recipe and no run folder" in said
    assert str(Path.cwd()) in said
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "cannot read" in complaint(binary)
    assert "a recipe is a table of sections, not a list" in complaint(
        write(tmp_path, "[]", "list.json")
    )


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("tracking.prometheus_host='0.0.0.0'", "without tracking.prometheus_port"),
        ("tracking.backends=['wandb', 'wandb']", "names 'wandb' twice"),
        ("rollout.drain_deadline=5", 'without rollout.on_sync="drain"'),
        ("weights={codec = 'full', keyframe_every = 5}", "every version is whole"),
        ("data.eval=[{path = 'e.jsonl', weight = 2}]", "e.jsonl has a weight"),
    ],
)
def test_a_key_that_would_do_nothing_is_refused(tmp_path: Path, override: str, reason: str) -> None:
    assert reason in complaint(write(tmp_path, GOOD), override)


@pytest.mark.parametrize("store", ["ftp://me:geheim@host/store", "s3://bucket/store?key=geheim"])
def test_a_store_that_holds_a_secret_is_refused_and_not_shown(tmp_path: Path, store: str) -> None:
    said = complaint(write(tmp_path, GOOD), f"weights.store={store}")
    assert "credentials in the environment" in said
    assert "geheim" not in said


def test_an_account_in_a_store_is_no_secret(tmp_path: Path) -> None:
    store = "abfs://container@account.dfs.core.windows.net/store"
    assert load_config(write(tmp_path, GOOD), [f"weights.store={store}"]).weights.store == store


def test_what_a_resolved_recipe_says_of_them_is_taken(tmp_path: Path) -> None:
    resolved = to_toml(load_config(write(tmp_path, GOOD)))
    assert "keyframe_every" in resolved and "backends" in resolved
    assert load_config(write(tmp_path, resolved, "resolved.toml")).weights.keyframe_every == 20


def test_a_stop_string_that_any_cut_character_would_complete(tmp_path: Path) -> None:
    said = complaint(write(tmp_path, GOOD), 'rollout.stop=["\\n\\n", "a\\ufffd"]')
    assert "has the replacement character U+FFFD" in said
