"""The endpoint of one process, scraped over HTTP."""

import logging
import socket

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from infra.observe.metrics.exporter import Exporter, port_of, start_exporter
from schemas.config import RunConfig
from schemas.control import Heartbeat


def recipe(**tracking) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": {"name": "r", "steps": 1},
            "model": {"path": "m"},
            "data": {"train": [{"path": "d.jsonl"}]},
            "rollout": {"workers": 2},
            "reward": {"functions": [{"use": "exact"}], "workers": 2},
            "trainer": {"lr": 0.1},
            "tracking": tracking,
        }
    )


def beat(**fields) -> Heartbeat:
    told = {"role": "rollout", "worker": "rollout-1", "host": "h", "pid": 1, "state": "running"}
    return Heartbeat.model_validate(told | fields)


@pytest.fixture
def exporter():
    one = Exporter(run="r", worker="rollout-1")
    one.listen("127.0.0.1", 0)
    yield one
    one.close()


def scrape(exporter: Exporter) -> dict[str, dict[tuple[str, ...], float]]:
    """Name -> values of the labels but run and worker -> value."""
    text = httpx.get(f"http://127.0.0.1:{exporter.port}/metrics").raise_for_status().text
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            assert sample.labels.pop("run") == "r" and sample.labels.pop("worker") == "rollout-1"
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_a_heartbeat_is_served_until_the_next(exporter):
    assert scrape(exporter) == {}
    counters = {"tokens_generated": 12.0, "swap_s": 0.5, "rss_bytes": 4096.0, "of_a_plug_in": 1.0}
    exporter.hear_beat(beat(counters=counters, slots=4, rollout_ids=("0.0", "0.1"), version=3))
    found = scrape(exporter)
    assert found["warren_rollout_tokens_generated_total"] == {(): 12.0}
    assert found["warren_rollout_swap_seconds_total"] == {(): 0.5}
    assert found["warren_rollout_rss_bytes"] == {(): 4096.0}
    assert found["warren_rollout_held"] == {(): 2.0}
    assert found["warren_rollout_version"] == {(): 3.0}
    assert found["warren_rollout_state"] == {("running",): 1.0}
    exporter.hear_beat(beat(state="waiting", waiting_s=4.0))
    found = scrape(exporter)
    assert found["warren_rollout_state"] == {("waiting",): 1.0}
    assert found["warren_rollout_waiting_seconds"] == {(): 4.0}
    assert "warren_rollout_version" not in found


def test_lines_are_served_without_what_is_no_number(exporter):
    line = {"step": 3, "version": 2, "train/loss": 0.5, "age/3-4/kl": 0.1, "age/0/kl": 0.0}
    exporter.hear_line("step", line | {"rewards/a b": 1, "reward/mean": None})
    exporter.hear_line("eval", {"eval/reward": 0.25})
    assert scrape(exporter) == {
        "warren_trainer_train_loss": {(): 0.5},
        "warren_trainer_age_kl": {("3-4",): 0.1, ("0",): 0.0},
        "warren_trainer_rewards": {("a b",): 1.0},
        "warren_trainer_eval_reward": {(): 0.25},
    }
    exporter.hear_line("step", {"train/loss": 0.25})
    exporter.hear_line("end", {"ledger/issued": 4})
    assert set(scrape(exporter)) == {"warren_trainer_train_loss", "warren_trainer_eval_reward"}


def test_ports_follow_the_order_of_up_and_others_take_a_free_one():
    config = recipe(prometheus_port=9400)
    names = ("trainer", "producer-1", "rollout-1", "rollout-2", "reward-1", "reward-2")
    assert [port_of(config, name) for name in names] == list(range(9400, 9406))
    assert port_of(config, "rollout-3") == port_of(config, "rollout-host-1234") == 0


def test_a_port_that_is_taken_costs_a_warning_and_nothing_else(caplog):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        exporter = start_exporter(recipe(prometheus_port=taken), worker="trainer")
        assert exporter is not None and exporter.port not in (0, taken)
        assert f"port {taken} for metrics" in caplog.text
        exporter.close()


def test_without_a_port_or_an_address_there_is_none(caplog):
    assert start_exporter(recipe(), worker="trainer") is None
    assert caplog.text == ""
    nowhere = recipe(prometheus_port=9400, prometheus_host="192.0.2.1")
    assert start_exporter(nowhere, worker="trainer") is None
    assert "no metrics endpoint at tracking.prometheus_host = '192.0.2.1'" in caplog.text


def test_where_it_listens_is_said(caplog):
    caplog.set_level(logging.INFO)
    exporter = start_exporter(recipe(prometheus_port=1), worker="by-hand")
    assert exporter is not None
    assert f"metrics at http://127.0.0.1:{exporter.port}/metrics" in caplog.text
    exporter.close()
