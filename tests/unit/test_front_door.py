"""The command line as a user meets it: nothing heavy is loaded, every mistake has its sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra.roles.settings import load_config

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "pika", "transformers", "vllm", "sglang", "numpy", "pyarrow", "matplotlib"}
RECIPE = """\
[run]
name = "first"
steps = 3

[broker]
url = "amqp://ana:geheim@broker.example/"

[model]
path = "models/small"

[[data.train]]
path = "train.jsonl"

[reward]
functions = [{ use = "exact" }]

[trainer]
lr = 1e-4
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "first.toml"
    path.write_text(RECIPE)
    return path


def door(
    *arguments: str | Path, options: tuple[str, ...] = ()
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *options, str(ROOT / "run.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def loaded_by(*arguments: str | Path) -> set[str]:
    """Top-level packages that a command imports."""
    done = door(*arguments, options=("-X", "importtime"))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    modules = {line.rpartition("|")[2].strip() for line in lines[1:]}
    assert {"infra", "argparse"} <= modules
    return {module.split(".")[0] for module in modules}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("up", "--help"),
        ("config",),
        ("check", "RECIPE", "--dry-run"),
        ("up", "RECIPE", "--dry-run"),
        ("trainer", "RECIPE", "--dry-run", "--resume"),
    ],
)
def test_nothing_heavy_is_loaded(arguments: tuple[str, ...], recipe: Path) -> None:
    words = [recipe if word == "RECIPE" else word for word in arguments]
    assert loaded_by(*words) & HEAVY == set()


def test_help_needs_not_even_pydantic() -> None:
    assert "pydantic" not in loaded_by("--help")


def test_help_names_every_command_and_exit_code() -> None:
    text = door("--help").stdout
    for word in ("up", "check", "broker", "producer", "rollout", "reward", "trainer", "config"):
        assert f"\n  {word} " in text
    assert "130 interrupted" in text
    assert door().stdout == text


def test_a_dry_run_can_be_run_again(recipe: Path, tmp_path: Path) -> None:
    done = door("up", recipe, "rollout.workers=3", "--dry-run", "run.seed=5")
    again = tmp_path / "again.toml"
    again.write_text(done.stdout)
    resolved = load_config(again)
    assert (resolved.rollout.workers, resolved.run.seed, resolved.trainer.lr) == (3, 5, 1e-4)
    assert "geheim" not in done.stdout
    assert "amqp://ana:***@broker.example/" in done.stdout


def test_config_documents_every_key() -> None:
    text = door("config").stdout
    assert "[rollout.engine_options]" not in text
    assert 'on_sync              "republish"' in text
    assert "What happens to running rollouts when new weights arrive." in text
    assert "[data.train]" in text
    assert "stop                 []             list of text\n" in text
    assert "typing." not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("upp", "RECIPE"), "unknown command 'upp'; did you mean 'up'?"),
        (("up", "missing.toml"), "no recipe and no run folder: missing.toml"),
        (("up", "RECIPE", "rollout.worker=2"), "unknown key 'rollout.worker'; did you mean"),
        (("up", "RECIPE", "run.steps=many"), 'run.steps = "many": expected a valid integer'),
        (("up", "RECIPE", "steps"), "not an override: 'steps'"),
        (("trainer", "RECIPE", "--resume", "--purge"), "not allowed with argument"),
        (("up", "RECIPE", "--worker", "3"), "unrecognized arguments"),
        (("up",), "the following arguments are required: RECIPE"),
        (("config", "RECIPE"), "run.py check RECIPE [a.b=c ...] --dry-run"),
    ],
)
def test_a_wrong_command_line_is_exit_2_with_a_sentence(
    arguments: tuple[str, ...], message: str, recipe: Path
) -> None:
    done = door(*[recipe if word == "RECIPE" else word for word in arguments])
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_check_says_what_is_missing_and_what_to_do(recipe: Path) -> None:
    done = door("check", recipe, "broker.url=amqp://u:geheim@127.0.0.1:9/")
    assert done.returncode == 2
    assert "ok      recipe" in done.stdout
    assert "FAILED  model         model.path = 'models/small': no such folder" in done.stdout
    assert "relative paths start where the command runs" in done.stdout
    assert "FAILED  broker        no broker answers at 127.0.0.1:9" in done.stdout
    assert "geheim" not in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
