"""`metrics.jsonl`: one JSON object per step, evaluation and end of a run."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

import orjson

from infra.roles.errors import WarrenError
from infra.runs.failpoints import FailPoint, halves

Kind = Literal["step", "eval", "end"]


class MetricsFile:
    """Appended to by the trainer, read by everyone else.

    A resumed run may write the line of a step again: readers take the last one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, kind: Kind, values: Mapping[str, Any]) -> None:
        """Write one line.

        Raises:
            WarrenError: The disk refused.
        """
        line = orjson.dumps({"kind": kind, **values}, option=orjson.OPT_SERIALIZE_NUMPY)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab+") as file:
                if not _ends_whole(file):
                    file.write(b"\n")
                for part in halves(FailPoint.METRICS_TORN, line + b"\n"):
                    file.write(part)
                    file.flush()
        except OSError as error:
            raise WarrenError(
                f"cannot write {self._path}: {error.strerror or error}",
                hint="free some space or fix its permissions, then go on with --resume",
            ) from error


def read_metrics(path: Path, kind: Kind | None = None) -> Iterator[dict[str, Any]]:
    """Lines of one kind, or all of them; what a crash tore, or is no line of ours, is skipped."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                values = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if not isinstance(values, dict) or "kind" not in values:
                continue
            if kind is None or values["kind"] == kind:
                yield values


def newest_lines(path: Path, kind: Kind, key: str) -> dict[int, dict[str, Any]]:
    """Lines of a kind by a whole number in them, in its order; of those with the same, the last.
    Lines without it are left out."""
    lines = {line[key]: line for line in read_metrics(path, kind) if _is_whole(line.get(key))}
    return {number: lines[number] for number in sorted(lines)}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ends_whole(file: IO[bytes]) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
