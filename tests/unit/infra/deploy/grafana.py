"""Expressions of the dashboard and of the alert rules, and the metric names in them."""

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[4] / "infra" / "deploy" / "grafana"
NAME = re.compile(r"\b(?:warren|rabbitmq)_\w+")
ANY_OF = re.compile(r'\{__name__=~"([^"]+)"')
TEXT = re.compile(r'"[^"]*"')


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return found


def panels() -> Iterator[dict[str, Any]]:
    """Those that show something."""
    return (panel for panel in dashboard()["panels"] if panel["type"] != "row")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[str]:
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*shown, *(rule["expr"] for rule in rules())]


def names_in(expression: str) -> set[str]:
    """Of metrics: written out, or as `{__name__=~"a_(b|c)"}`."""
    patterns = [name for pattern in ANY_OF.findall(expression) for name in spelt_out(pattern)]
    return {*NAME.findall(TEXT.sub('""', expression)), *patterns}


def spelt_out(pattern: str) -> list[str]:
    """`a_(b|c)` -> `a_b`, `a_c`."""
    parts = re.split(r"\(([^)]*)\)", pattern)
    choices = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]
