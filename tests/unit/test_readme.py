"""What README and its pages say of keys, faults, commands, exit codes exists; none is left out."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from infra.recipes.demo.calls import CompactCalls
from infra.roles.command.cli import COMMANDS
from infra.roles.errors import ExitCode
from infra.text.renderer import Renderer
from schemas.config import RunConfig
from schemas.storm import FaultKind, StormReport

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    path.relative_to(ROOT).parent.as_posix(): path.read_text(encoding="utf-8")
    for room in ("infra", "producers", "consumers", "schemas")
    for path in sorted((ROOT / room).rglob("*.md"))
}
"""Folder -> its own page, to which the README leads."""
ALL = "\n".join([README, *PAGES.values()])
FILES = {"py", "png"}
"""Endings of files that are named like a section: `run.py`, `reward.png`."""
SPAN = re.compile(r"`([^`\n]+)`")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    """The text under a heading, up to the next one."""
    _, found, rest = README.partition(f"\n## {title}\n")
    assert found, title
    return rest.partition("\n## ")[0]


def rows(text: str) -> Iterator[list[str]]:
    """Cells of each row of the tables in it, without heads and rules."""
    table = [line for line in text.splitlines() if line.startswith("|")]
    for line in table[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def code() -> str:
    """Everything that is set as code."""
    blocks = FENCED.findall(ALL)
    prose = FENCED.sub("", ALL)
    return "\n".join([*(body for _, body in blocks), *SPAN.findall(prose)])


def named_keys(text: str) -> set[tuple[str, str]]:
    """`section.key` wherever the section is one of a recipe."""
    sections = "|".join(RunConfig.model_fields)
    found = re.findall(rf"(?<![\w./-])({sections})\.([a-z_]+)", text)
    return {(name, key) for name, key in found if key not in FILES}


def missing_keys(text: str) -> list[str]:
    """Those that no recipe has."""
    sections = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    return [
        f"{name}.{key}"
        for name, key in sorted(named_keys(text))
        if key not in getattr(sections[name], "model_fields", {})
    ]


def test_each_fault_of_the_storm_is_in_the_table_once() -> None:
    table = list(rows(section("What survives what")))
    assert {len(row) for row in table} == {5}
    kinds = [kind for row in table for kind in SPAN.findall(row[4])]
    assert sorted(kinds) == sorted(FaultKind)


def test_what_bounds_a_cost_is_a_key_of_the_recipe() -> None:
    for row in rows(section("What survives what")):
        for span in SPAN.findall(row[3]):
            assert named_keys(span), span


def test_every_key_exists() -> None:
    assert len(named_keys(code())) > 20
    assert missing_keys(code()) == []
    assert missing_keys("trainer.lr weights.no_such_key run.py my.run.x") == ["weights.no_such_key"]


def test_the_recipe_that_it_shows_is_one() -> None:
    shown = [tomllib.loads(body) for language, body in FENCED.findall(README) if language == "toml"]
    whole, *parts = shown
    RunConfig.model_validate(whole)
    for part in parts:
        RunConfig.model_validate(
            whole | {name: whole.get(name, {}) | section for name, section in part.items()}
        )


def test_the_call_format_that_it_shows_is_the_demos() -> None:
    (shown,) = [body for _, body in FENCED.findall(README) if "class CompactCalls" in body]
    names: dict[str, Any] = {}
    exec(shown, names)
    mine, demos = names["CompactCalls"](), CompactCalls()
    renderer = cast("Renderer", None)
    assert mine.stop_token_ids(renderer) == demos.stop_token_ids(renderer)
    for text in ("7", "7<call>1+2</call>", "7<call>1+2", '<call>"<call></call>', "2</call>"):
        assert mine.parse(text, ()) == demos.parse(text, ())


def test_every_command_exists_and_is_named() -> None:
    named = set(re.findall(r"run\.py ([a-z]+)", code()))
    assert named == set(COMMANDS)


def test_every_exit_code_is_named() -> None:
    _, _, rest = README.partition("Exit codes: ")
    listed = re.findall(r"(?:^|,)\s*(\d+) ", rest.partition(".")[0])
    assert [int(number) for number in listed] == list(ExitCode)


def test_every_field_of_the_storms_report_is_explained() -> None:
    fields = [name for row in rows(PAGES["infra/storm"]) for name in SPAN.findall(row[0])]
    assert sorted(fields) == sorted(StormReport.model_fields)


def test_the_readme_leads_to_every_page_and_each_link_leads_somewhere() -> None:
    assert [folder for folder in PAGES if f"({folder}/README.md)" not in README] == []
    for folder, text in {"": README, **PAGES}.items():
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / folder / link).exists(), f"{folder or 'README'}: {link}"
