"""The table of names: whole, unambiguous, and shown as it is. A real run holds it to the code."""

import re
from collections import Counter as Count

import pytest

from consumers.reward.worker import RewardCounters
from consumers.rollout.counters import Counters
from consumers.trainer.arriving.tally import Tally
from consumers.trainer.batch.groups import Group
from consumers.trainer.batch.stats import batch_stats
from consumers.trainer.books.balance import Books
from consumers.trainer.books.totals import Totals
from consumers.trainer.learn.diagnostics import AGES
from consumers.trainer.telling.vitals import TrainerCounters
from infra.observe.metrics.beats import BEATS, ROLES
from infra.observe.metrics.catalog import CATALOG, PAGE, find, page
from infra.observe.metrics.lines import COORDINATES, ENDS, STEPS
from infra.observe.metrics.metric import Kind, Source
from infra.roles.heartbeats import ProcessCounters
from producers.prompts import ProducerCounters
from schemas.headers import Purpose
from schemas.reports import RewardReport, RolloutReport, TrainerReport
from tests.unit.trainer.batch.trajectories import trajectory

NAME = re.compile(r"[a-z][a-z0-9_]*(/([a-z0-9_]+|\{[a-z]+\}))+")
SERVED = [metric for metric in CATALOG if metric.source is not Source.END]


def fields(kind):
    return list(kind.__dataclass_fields__)


def numbers(report):
    """Those of its fields that are numbers."""
    annotations = {name: field.annotation for name, field in report.model_fields.items()}
    return [name for name, kind in annotations.items() if kind in (int, float)]


def names(metrics, prefix):
    return {m.name.removeprefix(prefix) for m in metrics if m.name.startswith(prefix)}


def test_the_page_shows_the_catalogue():
    assert PAGE.read_text(encoding="utf-8") == page()


def test_each_name_stands_for_one_metric():
    assert [name for name, n in Count(m.name for m in CATALOG).items() if n > 1] == []
    assert [name for name, n in Count(m.prometheus for m in SERVED).items() if n > 1] == []
    for metric in CATALOG:
        assert NAME.fullmatch(metric.name), metric
        assert metric.meaning and metric.unit, metric
        labels = {label: label for label in metric.labels}
        assert find(metric.name.format(**labels)) == (metric, labels)


@pytest.mark.parametrize(
    ("name", "served", "labels"),
    [
        ("rollout/tokens_generated", "warren_rollout_tokens_generated_total", {}),
        ("rollout/swap_s", "warren_rollout_swap_seconds_total", {}),
        ("reward/rss_bytes", "warren_reward_rss_bytes", {}),
        ("perf/tokens_per_s", "warren_trainer_perf_tokens_per_second", {}),
        ("time/step_s", "warren_trainer_time_step_seconds", {}),
        ("train/clip_frac", "warren_trainer_train_clip_frac", {}),
        ("age/3-4/kl", "warren_trainer_age_kl", {"age": "3-4"}),
        ("rewards/sum/called", "warren_trainer_rewards", {"function": "sum/called"}),
        ("rollout/state/waiting", "warren_rollout_state", {"state": "waiting"}),
    ],
)
def test_a_name_is_found_with_its_parts(name, served, labels):
    metric, parts = find(name)
    assert (metric.prometheus, parts) == (served, labels)


def test_what_is_no_metric_is_not_found():
    assert [find(name) for name in (*COORDINATES, "train/lost", "age//kl", "tokens")] == [None] * 8


def test_what_heartbeats_count_and_report_is_in_the_table_and_nothing_else():
    every = {*fields(ProcessCounters), "state/{state}", "waiting_s"}
    worker = {"version", "refuses", "slots", "held", "tokens_unsaved"}
    told = {
        "trainer": every.union(fields(TrainerCounters), numbers(TrainerReport)),
        "producer": every.union(fields(ProducerCounters)),
        "rollout": every.union(fields(Counters), numbers(RolloutReport), worker),
        "reward": every.union(fields(RewardCounters), numbers(RewardReport), {"held"}),
    }
    assert {role: names(BEATS, f"{role}/") for role in ROLES} == told
    assert names(ENDS, "ledger/") == set(fields(Books))


def test_each_bucket_of_age_is_one_of_the_histogram():
    assert {m.name for m in STEPS if m.kind is Kind.HISTOGRAM} == {"age/{age}/tokens"}
    assert [find(f"age/{age}/tokens")[1] for age in AGES] == [{"age": age} for age in AGES]


def test_what_a_batch_and_the_tally_come_to_is_in_the_table():
    member = trajectory(token_ids=[1, 5], mask=[0, 1], rewards={"exact_sum/called": 1.0})
    stats = batch_stats([Group.of(0, [member])], 3)
    assert [name for name in stats if find(name) is None] == []
    tally = Tally()
    for purpose in Purpose:
        rollout = member.rollout.model_copy(update={"purpose": purpose})
        tally.add(member.model_copy(update={"rollout": rollout}))
    tally.count("given_up")
    of_ledger = {f"total/{name}" for name in Totals().counts()}
    assert {*tally.to_json()} | of_ledger == {m.name for m in ENDS if m.name.startswith("total/")}


def test_the_names_that_the_page_draws_are_in_the_table():
    script = (PAGE.parents[1] / "page" / "assets" / "js" / "overview.js").read_text()
    drawn = re.findall(r"\"([a-z_]+/[a-z0-9_/]+)\"", script)
    assert len(drawn) > 20
    assert [name for name in drawn if find(name) is None] == []
