"""Definitions say what the roles declare, policies reach the queues of a run alone, and the
monitoring user's password is nowhere but where it is said."""

import argparse
import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from infra.amqp.definitions.export import definitions
from infra.amqp.definitions.policies import policies
from infra.amqp.definitions.users import PASSWORD_VARIABLE, MonitoringUser, password_hash
from infra.amqp.topology import QUEUE_NAMES, QUEUES, RECORDING, WORK_KEYS, queue_arguments
from infra.roles.command import queues
from infra.roles.errors import ConfigError

USER = MonitoringUser("demo-monitoring", "geheim")


def exported(run: str = "demo", vhost: str = "/") -> dict[str, Any]:
    return definitions(run, vhost=vhost, monitoring=USER)


def test_queues_are_declared_as_the_roles_do() -> None:
    named = {queue["name"]: queue for queue in exported()["queues"]}
    assert set(named) == {f"demo.{name}" for name in QUEUE_NAMES}
    for queue in (*QUEUES, RECORDING):
        assert named[f"demo.{queue.name}"]["arguments"] == queue_arguments(queue, run="demo")


def test_every_queue_is_bound_and_the_recording_hears_every_key() -> None:
    bindings = exported()["bindings"]
    assert {b["destination"] for b in bindings if b["destination_type"] == "queue"} == {
        f"demo.{name}" for name in QUEUE_NAMES
    }
    heard = {b["routing_key"] for b in bindings if b["destination_type"] == "exchange"}
    assert heard == set(WORK_KEYS.values())


def test_everything_lies_in_the_virtual_host() -> None:
    whole = exported(vhost="team")
    assert whole["vhosts"] == [{"name": "team"}]
    for kind in ("permissions", "policies", "exchanges", "queues", "bindings"):
        assert {one["vhost"] for one in whole[kind]} == {"team"}, kind


@pytest.mark.parametrize("run", ["demo", "a.b", "my-run_2"])
def test_each_queue_of_the_run_has_one_policy_and_no_other_queue_has_any(run: str) -> None:
    def matching(name: str) -> int:
        return sum(bool(re.search(one["pattern"], name)) for one in policies(run).values())

    assert [matching(f"{run}.{name}") for name in QUEUE_NAMES] == [1] * len(QUEUE_NAMES)
    others = [f"{run}.sync.x", f"x{run}.prompts", f"{run}.promptss", f"{run}.x.prompts", "prompts"]
    assert [matching(name) for name in [*others, run.replace(".", "x") + "x.prompts"]] == [0] * 6


def test_policies_stay_within_the_arguments() -> None:
    recording = policies("demo")["demo.recording"]["definition"]
    arguments = queue_arguments(RECORDING, run="demo")
    assert recording["max-length-bytes"] < int(arguments["x-max-length-bytes"])
    assert (recording["max-age"], arguments["x-max-age"]) == ("7D", "30D")


def test_a_password_hash_is_rabbitmqs() -> None:
    # the worked example of RabbitMQ's documentation
    known = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    assert password_hash("test12", bytes.fromhex("908DC60A")) == known
    assert password_hash("test12") != password_hash("test12")


@pytest.mark.parametrize("run", ["demo", "a.b"])
def test_the_monitoring_user_writes_to_its_own_queue_alone(run: str) -> None:
    allowed = USER.permissions(run)
    names = [
        *(f"{run}.{name}" for name in (*QUEUE_NAMES, "work", "sync", "events", "dead", "trainer")),
        *("amq.default", "other.prompts", f"{run}.monitor", f"{run}.monitor.zz", ""),
    ]
    for right in ("configure", "write"):
        assert [name for name in names if re.search(allowed[right], name)] == []
        assert re.search(allowed[right], f"{run}.monitor.0af3")
    readable = [name for name in names if re.search(allowed["read"], name)]
    assert sorted(readable) == sorted(f"{run}.{name}" for name in ("sync", "events", "recording"))
    assert USER.user()["tags"] == ["monitoring"]


def export(*words: str) -> int:
    parser = argparse.ArgumentParser()
    queues.add_arguments(parser)
    return queues.run(parser.parse_args(["--run", "demo", *words]))


def test_a_drawn_password_is_said_once_and_written_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    monkeypatch.setenv("WARREN_BROKER_URL", "amqp://admin:topsecret@host/team")
    file = tmp_path / "demo.json"
    assert export(str(file)) == 0
    said = capsys.readouterr().err
    (drawn,) = re.findall(r"password +(\S+) +\(said only here\)", said)
    text = file.read_text()
    assert drawn not in text and "topsecret" not in text + said
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(text)["vhosts"] == [{"name": "team"}]
    with pytest.raises(ConfigError, match="cannot be made: File exists"):
        export(str(file))


def test_a_given_password_is_not_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "geheim")
    assert export("--vhost", "v") == 0
    out = capsys.readouterr()
    assert "geheim" not in out.out + out.err
    whole = json.loads(out.out)
    assert whole["users"][0]["name"] == "demo-monitoring"
    assert [one["name"] for one in whole["vhosts"]] == ["v"]
