"""A resolved configuration as TOML that can be run again."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from infra.roles.settings import as_json_tree
from schemas.config import RunConfig


def to_toml(config: RunConfig) -> str:
    """Every key, defaults included; the broker's password is hidden."""
    lines: list[str] = []
    for section, keys in as_json_tree(config).items():
        lines += ["", f"[{section}]", *_table(keys, section)]
    return "\n".join(lines).strip() + "\n"


def _table(table: Mapping[str, Any], path: str) -> Iterator[str]:
    """Plain keys first, then what needs headers of its own."""
    later: list[tuple[str, Any]] = []
    for key, value in table.items():
        if _is_table_list(value) or isinstance(value, dict):
            later.append((key, value))
        elif value is not None:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in later:
        name = f"{path}.{_key(key)}"
        if isinstance(value, dict):
            if value:
                yield ""
                yield f"[{name}]"
                yield from _table(value, name)
        else:
            for entry in value:
                yield ""
                yield f"[[{name}]]"
                yield from _table(entry, name)


def _is_table_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _key(key: str) -> str:
    plain = key.replace("-", "").replace("_", "")
    return key if plain.isascii() and plain.isalnum() else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(entry) for entry in value)}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
