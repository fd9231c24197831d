"""Random access to a jsonl file: an offset per row in memory, each row read when asked for."""

import os
from pathlib import Path

import numpy as np
import orjson

from infra.roles.errors import ConfigError
from producers.rows import DatasetError

_CHUNK_BYTES = 1 << 22
_BOM = b"\xef\xbb\xbf"


class JsonlFile:
    """Rows of a `.jsonl` file; empty lines are not rows.

    Raises:
        ConfigError: The file is missing, unreadable or without rows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
            self._starts, self._stops = self._scan(path)
        except OSError as error:
            raise ConfigError(
                f"cannot read dataset {path}: {error.strerror or error}",
                hint="check the path under [data]; relative paths start where the command runs",
            ) from error
        self._lines = np.flatnonzero(self._stops > self._starts)
        if not len(self._lines):
            raise ConfigError(f"dataset {path} has no rows", hint="one JSON object per line")

    def __len__(self) -> int:
        return len(self._lines)

    def where(self, row: int) -> str:
        """`file:line`, lines counted from 1."""
        return f"{self.path}:{int(self._lines[row]) + 1}"

    def read(self, row: int) -> object:
        """The decoded row.

        Raises:
            DatasetError: The line is not JSON.
        """
        line = int(self._lines[row])
        start, stop = int(self._starts[line]), int(self._stops[line])
        raw = os.pread(self._descriptor, stop - start, start)
        try:
            return orjson.loads(raw.removeprefix(_BOM))
        except orjson.JSONDecodeError as error:
            raise DatasetError(f"{self.where(row)}: not JSON: {error}") from error

    def close(self) -> None:
        """Close the file; reading fails afterwards."""
        os.close(self._descriptor)

    @staticmethod
    def _scan(path: Path) -> tuple[np.ndarray, np.ndarray]:
        """Start and stop of each line in bytes, without its end; empty lines have no length."""
        ends, base = [], 0
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                ends.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == 0x0A) + base)
                base += len(chunk)
            stops = np.concatenate([*ends, np.zeros(0, np.int64)]).astype(np.int64)
            if not len(stops) or stops[-1] != base - 1:
                stops = np.append(stops, base)
            starts = np.concatenate(([0], stops[:-1] + 1)).astype(np.int64)
            for line in np.flatnonzero(stops - starts <= 4):
                file.seek(int(starts[line]))
                if not file.read(int(stops[line] - starts[line])).removeprefix(_BOM).strip():
                    stops[line] = starts[line]
        return starts, stops
