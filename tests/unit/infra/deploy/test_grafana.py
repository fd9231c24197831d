"""Dashboard and alert rules: each metric, label and key that they name exists."""

import re

import pytest
import yaml

from infra.observe.metrics.catalog import CATALOG
from infra.observe.metrics.exporter import port_of
from infra.observe.metrics.metric import Source
from infra.roles.names import planned
from infra.roles.settings import load_config
from schemas.config import RunConfig
from tests.unit.infra.deploy.grafana import (
    FOLDER,
    dashboard,
    expressions,
    names_in,
    panels,
    rules,
    spelt_out,
)

SERVED = {metric.prometheus: metric for metric in CATALOG if metric.source is not Source.END}
OVER_TIME = re.compile(r"\b(?:rate|increase)\((\w+)")


def test_names_are_found_in_expressions():
    assert names_in('sum(rate(warren_a_total{run=~"warren_x"}[2m])) by (x)') == {"warren_a_total"}
    assert spelt_out("a_(b|c)_d") == ["a_b_d", "a_c_d"]
    assert names_in('{__name__=~"warren_(a|b)_s"} > 1') == {"warren_a_s", "warren_b_s"}


def test_every_metric_of_ours_is_served():
    named = {name for one in expressions() for name in names_in(one) if name.startswith("warren_")}
    assert sorted(named - SERVED.keys()) == []
    assert len(named) > 40


def test_rates_are_of_what_only_grows_and_counters_are_shown_as_rates():
    for expression in expressions():
        for name in OVER_TIME.findall(expression):
            assert name.endswith("_total"), expression
        counters = {name for name in names_in(expression) if name.endswith("_total")}
        assert counters == set(OVER_TIME.findall(expression)), expression


def test_expressions_are_whole():
    for expression in expressions():
        for opening, closing in ("()", "[]", "{}"):
            assert expression.count(opening) == expression.count(closing), expression


def test_panels_say_what_they_show_with_labels_that_exist():
    titles = [panel["title"] for panel in panels()]
    assert len(titles) == len(set(titles)) > 20
    for panel in panels():
        assert panel["description"].endswith(".")
        for target in panel["targets"]:
            served = [SERVED[name] for name in names_in(target["expr"]) if name in SERVED]
            known = {"run", "worker", "queue", *(label for m in served for label in m.labels)}
            assert {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= known, target
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


def test_alerts_are_named_once_and_say_what_to_do():
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) > 10
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")
    text = (FOLDER / "alerts.yml").read_text()
    sections = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    keys = re.findall(rf"\b({'|'.join(sections)})\.([a-z_]+)", text)
    keys = [(section, key) for section, key in keys if key != "py"]
    assert keys and all(key in sections[section].model_fields for section, key in keys)


@pytest.mark.parametrize("recipe", ["demo"])
def test_the_scrape_example_finds_the_processes_of_a_run(recipe):
    config = load_config(recipe, ["tracking.prometheus_port=9400"])
    jobs = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    ours = next(job for job in jobs if job["job_name"] == "warren")
    ports = [port_of(config, name) for _, name, _ in planned(config)]
    assert ours["static_configs"] == [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
