"""From a recipe and `a.b=c` overrides to a checked `RunConfig`, or a sentence on what is wrong."""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from infra.roles.command.describe import keys_at
from infra.roles.errors import ConfigError
from schemas.config import RunConfig

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
_POSITION = re.compile(r"\(at line (\d+), column (\d+)\)")


def load_config(recipe: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe (`.toml`, or a run folder) and apply overrides in order.

    Relative paths inside it stay as they are: they are meant from the current folder.

    Raises:
        ConfigError: What is wrong, where, and what would be right.
    """
    path = find_recipe(recipe)
    text = _read(path)
    tree = _parse(path, text)
    for override in overrides:
        apply_override(tree, override)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        problems = [_explain(detail, text, path, overrides) for detail in error.errors()]
        more = len(problems) - 1
        hint = "\n     ".join(line for _, line in problems if line)
        messages = "\n".join(message for message, _ in problems)
        raise ConfigError(
            f"{messages}" + (f"\n({more + 1} problems)" if more else ""), hint=hint
        ) from None


def find_recipe(recipe: str | Path) -> Path:
    """A file, a run folder's `config.json`, or the name of a recipe that comes with Warren."""
    path = Path(recipe)
    if path.is_file():
        return path
    if (resolved := path / "config.json").is_file():
        return resolved
    known = sorted(found.stem for found in RECIPES.glob("*.toml"))
    if str(recipe) in known:
        return RECIPES / f"{recipe}.toml"
    close = difflib.get_close_matches(path.stem, known, n=1)
    raise ConfigError(
        f"no recipe and no run folder: {recipe} (looked in {Path.cwd()})"
        + (f"; did you mean {RECIPES / close[0]}.toml?" if close else ""),
        hint=f"recipes that come along: {', '.join(known) or 'none'}",
    )


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Set one key: `rollout.workers=4`, `data.train.0.path=x.jsonl`. Values are TOML, else text.

    Raises:
        ConfigError: It is not `key=value`, or it goes through something that is no section.
    """
    key, separator, value = override.partition("=")
    parts = key.strip().split(".")
    if not separator or not all(parts):
        raise ConfigError(
            f"not an override: {override!r}", hint="write section.key=value, as in run.seed=1"
        )
    node: Any = tree
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(node, list):
            if not part.isdigit() or int(part) >= len(node):
                where = ".".join(parts[:depth])
                raise ConfigError(
                    f"override {override!r}: {where} has {len(node)} entries, not {part!r}",
                    hint=f"write {where}.0 for the first",
                )
            index: Any = int(part)
        elif isinstance(node, dict):
            index = part
            if not last:
                node.setdefault(part, {})
        else:
            raise ConfigError(
                f"override {override!r}: {'.'.join(parts[:depth])} is a value, not a section"
            )
        if last:
            node[index] = parse_value(value.strip())
        else:
            node = node[index]


def parse_value(text: str) -> Any:
    """A TOML value (`3`, `true`, `[1, 2]`, `"x"`); anything else is taken as text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, or a number or nesting without end
        return text
    return parsed["value"] if list(parsed) == ["value"] else text


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        tree = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _POSITION.search(str(error))
        line, column = found.groups() if found else (str(text.count("\n") + 1), "1")
        reason = _POSITION.sub("", str(error)).strip()
        shown = text.splitlines()[int(line) - 1] if text.splitlines()[int(line) - 1 :] else ""
        raise ConfigError(
            f"{path}:{line}:{column}: not valid TOML: {reason}: {shown.strip()!r}",
            hint="texts need quotes, sections are [name], lists are [1, 2]",
        ) from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path}: a number in it cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: it is nested too deep for a recipe") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a recipe is a table of sections, not a {type(tree).__name__}")
    return tree


def _explain(
    detail: ErrorDetails, text: str, path: Path, overrides: Sequence[str]
) -> tuple[str, str]:
    """Message and hint for one validation error."""
    location = detail["loc"]
    key = ".".join(str(part) for part in location)
    where = _where(location, text, path, overrides)
    value = _shown(detail["input"])
    kind, reason = detail["type"], detail["msg"]
    parents = location[:-1]
    if kind == "extra_forbidden":
        valid = keys_at(parents)
        close = difflib.get_close_matches(str(location[-1]), valid, n=1, cutoff=0.5)
        section = ".".join(str(part) for part in parents)
        inside = f"[{section}] takes" if section else "sections are"
        return (
            f"{where}: unknown key {key!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
            f"{inside}: {', '.join(valid)}",
        )
    if kind == "missing" and isinstance(location[-1], str):
        return f"{where}: missing key {key!r}", f"add it to the recipe, or write {key}=... after it"
    if not location:
        return f"{path}: {reason.removeprefix('Value error, ')}", ""
    return f"{where}: {key} = {value}: expected {_expected(detail)}", _doc_hint(location)


def _expected(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "too_short":
            return f"at least {context['min_length']} of them"
        case "too_long":
            return f"at most {context['max_length']} of them"
        case "string_too_short":
            return "a text that is not empty"
        case "string_pattern_mismatch":
            return f"a text like {context['pattern']}"
        case "tuple_type":
            return "a list"
        case "dict_type" | "model_type" | "model_attributes_type":
            return "a table"
        case "missing":
            return "one value more"
    return detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")


def _doc_hint(location: tuple[int | str, ...]) -> str:
    while isinstance(location[-1], int):
        location = location[:-1]
    doc = keys_at(location[:-1]).get(str(location[-1]), "")
    return f"{location[-1]}: {doc}" if doc else ""


def _where(location: tuple[int | str, ...], text: str, path: Path, overrides: Sequence[str]) -> str:
    """`override 'a.b=c'`, `recipe.toml:12`, or the recipe alone."""
    key = ".".join(str(part) for part in location)
    for override in reversed(overrides):
        overridden = override.partition("=")[0].strip()
        if key == overridden or key.startswith(f"{overridden}."):
            return f"override {override!r}"
    line = _line_of(location, text) if path.suffix == ".toml" else None
    return f"{path}:{line}" if line else str(path)


def _line_of(location: tuple[int | str, ...], text: str) -> int | None:
    """Line of the key below its section's header, for what is written in the usual way."""
    names = [str(part) for part in location if isinstance(part, str)]
    section: list[str] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        header = re.fullmatch(r"\[\[?\s*([^\[\]]+?)\s*\]\]?(\s*#.*)?", line)
        if header:
            section = [part.strip().strip('"') for part in header[1].split(".")]
            if section == names:
                return number
        elif "=" in line:
            key = [part.strip().strip('"') for part in line.partition("=")[0].split(".")]
            written = [*section, *key]
            if written == names[: len(written)]:
                return number
    return None


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, default=repr, ensure_ascii=False)
    except RecursionError:
        text = "nested too deep to be shown"
    return text if len(text) <= 60 else f"{text[:57]}..."


def as_json_tree(config: RunConfig) -> Mapping[str, Any]:
    """The resolved configuration with the broker's password hidden: for screens and files."""
    from infra.amqp.url import mask_url

    tree: dict[str, Any] = config.model_dump(mode="json")
    if tree["broker"]["url"]:
        tree["broker"]["url"] = mask_url(tree["broker"]["url"])
    return tree
