"""Things that a recipe names: agents, parsers, tools, interactions, rewards, objectives.

A plain name is one registered by decorator in the kind's built-in package, which is imported only
when such a name is asked for. `package.module:name` is imported, from anywhere.
"""

import difflib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from infra.roles.errors import ConfigError

T = TypeVar("T")

BUILTINS: dict[str, str] = {
    "agent": "consumers.rollout.agents",
    "parser": "consumers.rollout.parsers",
    "tool": "consumers.rollout.tools",
    "interaction": "consumers.rollout.interactions",
    "reward": "consumers.reward.functions",
    "objective": "consumers.trainer.learn.losses",
    "advantages": "consumers.trainer.batch.advantages",
    "tracker": "infra.observe.tracking.backends",
}
"""Kind -> the package or module whose decorators register its built-ins."""

_registered: dict[tuple[str, str], Any] = {}


def register(kind: str, name: str) -> Callable[[T], T]:
    """Decorator: make something known by a plain name.

    Raises:
        ValueError: The kind is unknown, or the name is taken by something else.
    """
    if kind not in BUILTINS:
        raise ValueError(f"unknown kind {kind!r}; known: {', '.join(BUILTINS)}")

    def remember(thing: T) -> T:
        known = _registered.get((kind, name))
        if known is not None and _origin(known) != _origin(thing):
            raise ValueError(f"{kind} {name!r} is already {_origin(known)}")
        _registered[kind, name] = thing
        return thing

    return remember


def resolve(kind: str, name: str) -> Any:
    """What a recipe means by `name`.

    Raises:
        ConfigError: Nothing is registered under the name, or the import path leads nowhere.
    """
    if kind not in BUILTINS:
        raise ValueError(f"unknown kind {kind!r}; known: {', '.join(BUILTINS)}")
    if ":" in name:
        return import_path(name, what=kind)
    if (kind, name) not in _registered:
        _load_builtins(kind, name)
    if (kind, name) in _registered:
        return _registered[kind, name]
    known = names(kind)
    close = difflib.get_close_matches(name, known, n=1)
    raise ConfigError(
        f"unknown {kind} {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
        hint=f"known: {', '.join(known) or 'none'}; or write your own as 'package.module:name'",
    )


def names(kind: str) -> list[str]:
    """Every registered name of a kind that has been loaded so far."""
    return sorted(name for known, name in _registered if known == kind)


def import_path(path: str, *, what: str = "object") -> Any:
    """The attribute that `package.module:name` names. The current folder is searched too.

    Raises:
        ConfigError: The module cannot be imported, has no such attribute, or lies in a run folder:
            a stranger's would bring its own code along.
    """
    module_name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    if (folder := _run_folder_of(module_name)) is not None:
        raise ConfigError(
            f"{what} {path!r} lies in the run folder {folder}, which holds data and no code",
            hint="keep your own modules beside the recipe",
        )
    try:
        found: Any = importlib.import_module(module_name)
    except (ImportError, SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{what} {path!r}: cannot import {module_name!r}: {error}",
            hint=f"modules are searched in {here} and on PYTHONPATH",
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, dir(found), n=1)
            raise ConfigError(
                f"{what} {path!r}: {module_name} has no {part!r}",
                hint=f"did you mean {close[0]!r}?" if close else "",
            )
        found = getattr(found, part)
    return found


def _run_folder_of(module_name: str) -> Path | None:
    """The run folder that a module or a package around it would be imported from."""
    parts = module_name.split(".")
    for entry in sys.path:
        for depth in range(1, len(parts)):
            folder = Path(entry, *parts[:depth])
            if (folder / "journal").is_dir() and (folder / "config.json").is_file():
                return folder
    return None


def _load_builtins(kind: str, name: str) -> None:
    """Import the built-in module called like the name; failing that, all of the kind's."""
    home = BUILTINS[kind]
    if importlib.util.find_spec(home) is None:
        return
    package = importlib.import_module(home)
    if not hasattr(package, "__path__"):
        return
    modules = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    for module in [name] if name in modules else []:
        importlib.import_module(f"{home}.{module}")
    if (kind, name) in _registered:
        return
    for module in modules:
        importlib.import_module(f"{home}.{module}")


def _origin(thing: Any) -> str:
    module, qualified = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    return f"{module}:{qualified}" if qualified else repr(thing)
