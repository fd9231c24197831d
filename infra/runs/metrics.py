"""`metrics.jsonl`: one JSON object per step, evaluation and end of a run."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import orjson

Kind = Literal["step", "eval", "end"]


class MetricsFile:
    """Appended to by the trainer, read by everyone else.

    A resumed run may write the line of a step again: readers take the last one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, kind: Kind, values: Mapping[str, Any]) -> None:
        """Write one line."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = orjson.dumps({"kind": kind, **values}, option=orjson.OPT_SERIALIZE_NUMPY)
        with self._path.open("ab") as file:
            file.write(line + b"\n")


def read_metrics(path: Path, kind: Kind | None = None) -> Iterator[dict[str, Any]]:
    """Lines of one kind, or all of them; a torn last line is skipped."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            values = orjson.loads(line)
            if kind is None or values["kind"] == kind:
                yield values
