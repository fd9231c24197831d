"""`[rollout.engine_options]` of the SGLang engine, and the versions that it knows."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from consumers.rollout.engines.options import read_engine_options
from infra.roles.errors import ConfigError
from schemas.base import Frozen

OLDEST, NEWEST = (0, 5, 23), (0, 5, 99)
"""SGLang versions whose answers this engine knows; older ones tell no version for each token."""

API_KEY, ADMIN_KEY = "WARREN_SGLANG_API_KEY", "WARREN_SGLANG_ADMIN_KEY"
"""Environment variables with the keys of a server that is given; control needs the second."""

SEEDS = "--enable-deterministic-inference"

_OURS = {
    "--model-path": "model.path",
    "--model": "model.path",
    "--dtype": "model.dtype",
    "--context-length": "rollout.max_prompt_tokens and rollout.max_response_tokens",
    "--max-running-requests": "rollout.slots",
    "--host": "",
    "--port": "",
    "--weight-version": "",
    "--skip-tokenizer-init": "",
    "--skip-server-warmup": "",
    "--incremental-streaming-output": "",
    "--tokenizer-worker-num": "",
    "--api-key": "",
    "--admin-api-key": "",
    "--trust-remote-code": "",
}
_PROBE = "from importlib.metadata import version; print(version('sglang'))"
_PROBE_S = 60.0


class Options(Frozen):
    """How the server is started or found. One of `python`, `command` and `url`."""

    python: str = ""
    """Interpreter of the environment in which SGLang is installed."""
    command: tuple[str, ...] = ()
    """What starts a server instead of `python -m sglang.launch_server`; our arguments follow."""
    url: str = ""
    """Of a server that runs already; it must see our files, and nobody else may update it."""
    arguments: tuple[str, ...] = ()
    """More arguments for the server, such as `--enable-deterministic-inference`."""
    environment: dict[str, str] = Field(default_factory=dict)
    """More environment variables for the server."""
    start_timeout: float = Field(default=900.0, gt=0)
    """Seconds until it must be ready."""
    update_timeout: float = Field(default=600.0, gt=0)
    """Seconds that one update of the weights may take."""
    kv_cache: Literal["recompute"] = "recompute"
    """Of running sequences at a swap."""

    @field_validator("url")
    @classmethod
    def _without_secrets(cls, url: str) -> str:
        """It stands in the run folder and in logs."""
        authority = url.partition("://")[2].partition("/")[0]
        if "@" in authority or "?" in url:
            raise ValueError(
                f"holds a password or a query; give http://host:port alone, and keys in the "
                f"environment ({API_KEY}, {ADMIN_KEY})"
            )
        return url

    @field_validator("arguments")
    @classmethod
    def _not_ours(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        for argument in arguments:
            name = argument.partition("=")[0]
            if name in _OURS:
                where = f"set {_OURS[name]}" if _OURS[name] else "the engine sets it"
                raise ValueError(f"{name} cannot be set here: {where}")
        return arguments


def read_options(given: Mapping[str, Any]) -> Options:
    """The options in a recipe; looks at nothing outside it.

    Raises:
        ConfigError: An unknown key, a value out of range, or no way to a server.
    """
    if given.get("kv_cache") == "keep":
        raise ConfigError(
            "rollout.kv_cache is 'keep'",
            hint="SGLang would reuse prefixes of old weights for new requests; "
            "set kv_cache = 'recompute'",
        )
    options = read_engine_options(Options, given, engine="SGLang")
    named = [name for name in ("python", "command", "url") if getattr(options, name)]
    if len(named) != 1:
        raise ConfigError(
            f"rollout.engine is 'sglang', and engine_options name {' and '.join(named) or 'no'} "
            "server" + ("s" if len(named) > 1 else ""),
            hint="set one of python = '/path/to/sglang-env/bin/python', command = [...] and "
            "url = 'http://host:port'",
        )
    if options.url and not options.url.startswith(("http://", "https://")):
        raise ConfigError(
            "rollout.engine_options.url does not begin with http:// or https://",
            hint="write url = 'http://host:port'",
        )
    if options.url and (options.arguments or options.environment):
        raise ConfigError(
            "rollout.engine_options has arguments or environment for a server that runs already",
            hint="give them to the command that starts it",
        )
    return options


def check_reachable(options: Options) -> str:
    """See that the server can be started, without starting it; returns what was found.

    Raises:
        ConfigError: No such interpreter or command, or SGLang is missing there, too old or too new.
    """
    if options.url:
        keys = [name for name in (API_KEY, ADMIN_KEY) if os.environ.get(name)]
        return f"SGLang at {options.url}, keys: {' and '.join(keys) or 'none'}"
    if options.command:
        if shutil.which(options.command[0]) is None:
            raise ConfigError(f"rollout.engine_options.command: no program {options.command[0]!r}")
        return f"SGLang by {options.command[0]}"
    if not Path(options.python).is_file():
        raise ConfigError(
            f"rollout.engine_options.python: no file {options.python!r}",
            hint="give the interpreter of the environment in which SGLang is installed",
        )
    try:
        found = subprocess.run(
            [options.python, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            env={**os.environ, **options.environment},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"rollout.engine_options.python: {options.python} does not run: {error}"
        ) from error
    if found.returncode:
        raise ConfigError(
            f"SGLang is not installed in the environment of {options.python}",
            hint=f"install {span()} there",
        )
    check_version(found.stdout.strip())
    return f"SGLang {found.stdout.strip()} by {options.python}"


def seeds_and_min_p() -> ConfigError:
    """What is wrong with both."""
    return ConfigError(
        f"rollout.min_p would end an SGLang server with {SEEDS}",
        hint="leave one of them out, or use rollout.top_p",
    )


def check_version(version: str) -> None:
    """Refuse versions that this engine does not know.

    Raises:
        ConfigError: With those that it knows.
    """
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None or not OLDEST <= tuple(map(int, found.groups())) <= NEWEST:
        raise ConfigError(f"SGLang is {version!r}, this engine knows {span()}")


def span() -> str:
    """The versions, for people."""
    low, high = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
    return f"SGLang {low} to {high}"
