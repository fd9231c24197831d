"""Which broker a role or a tool talks to."""

from pathlib import Path

import pytest

from infra.roles.broker_url import BROKER_VARIABLE, find_url
from infra.roles.errors import BrokerUnreachable
from infra.runs.folder import RunFolder
from schemas.config import RunConfig


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.delenv(BROKER_VARIABLE, raising=False)
    return RunConfig.model_validate(
        {
            "run": {"name": "one", "steps": 1},
            "model": {"path": "m"},
            "data": {"train": [{"path": "d.jsonl"}]},
            "reward": {"functions": [{"use": "exact"}]},
            "trainer": {"lr": 0.1},
        }
    )


def test_a_run_without_a_broker_says_how_to_get_one(config: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(BrokerUnreachable, match=r"no private node runs.*(?s:.*)run\.py up"):
        find_url(config, RunFolder(tmp_path))


def test_of_a_run_that_is_over_its_folder_is_left(config: RunConfig, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.summary.write_text("{}")
    with pytest.raises(BrokerUnreachable, match=r"is over(?s:.*)run\.py ledger"):
        find_url(config, folder)


def test_the_private_node_of_the_folder_is_found(config: RunConfig, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.broker.mkdir()
    folder.broker_url.write_text("amqp://u:p@127.0.0.1:1/\n")
    assert find_url(config, folder) == "amqp://u:p@127.0.0.1:1/"


@pytest.mark.parametrize("way", ["no text", "a folder"])
def test_a_file_that_cannot_be_read_is_named(config: RunConfig, tmp_path: Path, way: str) -> None:
    folder = RunFolder(tmp_path)
    folder.broker.mkdir()
    if way == "no text":
        folder.broker_url.write_bytes(b"amqp://u:\xff@h/")
    else:
        folder.broker_url.mkdir()
    with pytest.raises(BrokerUnreachable, match=r"broker/url, .* cannot be read") as raised:
        find_url(config, folder)
    assert BROKER_VARIABLE in str(raised.value) and "run.py broker RUN" in str(raised.value)
