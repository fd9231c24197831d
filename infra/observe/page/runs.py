"""Which runs there are below a folder, and one run with its index and its tokenizer."""

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import orjson
from pydantic import ValidationError

from infra.observe.page.index import Index, segment_sizes
from infra.observe.page.pieces import Pieces
from infra.runs.folder import RunFolder
from schemas.base import MAX_COUNT, encodable
from schemas.config import RunConfig

MAX_CONFIG_BYTES = 4 << 20
"""A longer recipe is not read to its end, so it is none."""


def is_run(folder: Path) -> bool:
    """Whether a folder is one of a run that has begun; not when it may not be looked into."""
    run = RunFolder(folder)
    try:
        return run.metrics.is_file() or run.journal.is_dir()
    except OSError:
        return False


def shown_name(folder: Path) -> str:
    r"""A folder's name as text: a byte that is no UTF-8 becomes `\xff`."""
    return os.fsencode(folder.name).decode("utf-8", "backslashreplace")


class Run:
    """One run folder."""

    def __init__(self, root: Path) -> None:
        self.name = shown_name(root)
        self.folder = RunFolder(root)
        self.index = Index(self.folder.journal)

    @cached_property
    def config(self) -> RunConfig | None:
        """Its recipe; None when `config.json` is missing or of another version."""
        try:
            if not self.folder.config.is_file():  # a pipe or a device has no end
                return None
            with self.folder.config.open("rb") as file:
                return RunConfig.model_validate_json(file.read(MAX_CONFIG_BYTES))
        except (OSError, ValidationError):
            return None

    @cached_property
    def pieces(self) -> Pieces:
        """Texts of its tokens: by the newest checkpoint's tokenizer, else by the model's."""
        folders = sorted(
            self.folder.checkpoints.glob("step_*/hf"), key=lambda path: path.parent.name
        )
        model = [Path(self.config.model.path)] if self.config is not None else []
        return Pieces.find([*reversed(folders), *model])

    def stamp(self) -> str:
        """Changes when there is something new to show."""
        sizes = {}
        with suppress(OSError):
            sizes["metrics"] = self.folder.metrics.stat().st_size
        with suppress(OSError):
            sizes |= list(segment_sizes(self.folder.journal).items())[-1:]
        said = [f"{name}:{size}" for name, size in sizes.items()]
        return encodable(" ".join([*said, str(self.index.num_known)]))

    def glance(self) -> dict[str, Any]:
        """What the list of runs says of it: read from the end of the metrics file. `problem` says
        why that cannot be read."""
        steps_asked = min(self.config.run.steps, MAX_COUNT) if self.config is not None else None
        known = {"name": self.name, "steps_asked": steps_asked, "problem": ""}
        try:
            return known | self._newest()
        except OSError as error:
            unknown = dict.fromkeys(("reward", "eval_reward", "changed"))
            return known | unknown | {"step": 0, "ended": False, "problem": encodable(str(error))}

    def _newest(self) -> dict[str, Any]:
        step = last_line(self.folder.metrics, b'"kind":"step"')
        evaluation = last_line(self.folder.metrics, b'"kind":"eval"')
        ended = last_line(self.folder.metrics, b'"kind":"end"')
        return {
            "step": number_in(step, "step") or 0,
            "reward": number_in(step, "arrived/reward"),
            "eval_reward": number_in(evaluation, "eval/reward"),
            "ended": bool(ended),
            "changed": max(
                (path.stat().st_mtime for path in (self.folder.metrics, self.folder.journal)
                 if path.exists()), default=None,
            ),
        }  # fmt: skip


class Runs:
    """The runs of a folder, which may be a run itself. Looked up by name, never by path."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._runs: dict[str, Run] = {}
        self._lock = Lock()
        self.single = is_run(root)

    def all(self) -> list[Run]:
        """By name. A link to another run of the folder is left out."""
        children = [self._root] if self.single else sorted(self._root.iterdir())
        with self._lock:
            for child in children:
                name = shown_name(child)
                if name in self._runs or not child.is_dir() or not is_run(child):
                    continue
                if self.single or not child.is_symlink():
                    self._runs[name] = Run(child)
            return list(self._runs.values())

    def get(self, name: str) -> Run | None:
        """One of them."""
        if name not in self._runs:
            self.all()
        return self._runs.get(name)


def last_line(path: Path, mark: bytes, *, tail_bytes: int = 1 << 20) -> dict[str, Any]:
    """The last line of a metrics file that begins with `{` and the mark; empty without one."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - tail_bytes))
        lines = file.read(tail_bytes).split(b"\n")
    for line in reversed(lines):
        if line.startswith(b"{" + mark):
            try:
                found = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            return found if isinstance(found, dict) else {}
    return {}


def number_in(line: Mapping[str, Any], name: str) -> float | None:
    """A number of a metrics line; None when there is none of this name."""
    value = line.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
