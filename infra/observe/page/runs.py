"""Which runs there are below a folder, and one run with its index and its tokenizer."""

from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import orjson
from pydantic import ValidationError

from infra.observe.page.index import Index
from infra.observe.page.pieces import Pieces
from infra.runs.folder import RunFolder
from infra.runs.metrics import read_metrics
from schemas.config import RunConfig


def is_run(folder: Path) -> bool:
    """Whether a folder is one of a run that has begun."""
    run = RunFolder(folder)
    return run.metrics.is_file() or run.journal.is_dir()


class Run:
    """One run folder."""

    def __init__(self, root: Path) -> None:
        self.name = root.name
        self.folder = RunFolder(root)
        self.index = Index(self.folder.journal)

    @cached_property
    def config(self) -> RunConfig | None:
        """Its recipe; None when `config.json` is missing or of another version."""
        try:
            return RunConfig.model_validate_json(self.folder.config.read_bytes())
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
        paths = (self.folder.metrics, *sorted(self.folder.journal.glob("*.journal"))[-1:])
        sizes = [f"{path.name}:{path.stat().st_size}" for path in paths if path.exists()]
        return " ".join([*sizes, str(self.index.num_known)])

    def glance(self) -> dict[str, Any]:
        """What the list of runs says of it: read from the end of the metrics file."""
        step = last_line(self.folder.metrics, b'"kind":"step"')
        evaluation = last_line(self.folder.metrics, b'"kind":"eval"')
        ended = last_line(self.folder.metrics, b'"kind":"end"')
        return {
            "name": self.name,
            "steps_asked": self.config.run.steps if self.config is not None else None,
            "step": step.get("step", 0),
            "reward": step.get("arrived/reward"),
            "eval_reward": evaluation.get("eval/reward"),
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
                if child.name in self._runs or not child.is_dir() or not is_run(child):
                    continue
                if self.single or not child.is_symlink():
                    self._runs[child.name] = Run(child)
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
        lines = file.read().split(b"\n")
    for line in reversed(lines):
        if line.startswith(b"{" + mark):
            try:
                found = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            return found if isinstance(found, dict) else {}
    return {}


def step_lines(path: Path) -> list[dict[str, Any]]:
    """Lines of steps, in their order; of a step that was taken again, the last."""
    by_step = {line["step"]: line for line in read_metrics(path, "step")}
    return [by_step[step] for step in sorted(by_step)]
