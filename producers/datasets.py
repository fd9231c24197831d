"""Datasets: which row credit n stands for, and the row itself.

Credit n belongs to one source, by the weights; within a source, its k-th credit is position
k % len of the seeded permutation of epoch k // len. Nothing is stored: every producer computes the
same row from the seed and n alone.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

import numpy as np

from infra.roles.errors import ConfigError
from producers.jsonl import JsonlFile
from producers.parquet import ParquetFile
from producers.rows import COLUMNS, Row, parse_row
from producers.shuffle import permuted
from schemas.config import DataSource

BLOCK = 1000
"""Credits over which the shares of several sources are exact, to the nearest thousandth."""


class RowFile(Protocol):
    """A file with rows, opened."""

    def __len__(self) -> int: ...

    def where(self, row: int) -> str:
        """File and line, for messages."""

    def read(self, row: int) -> object:
        """The decoded row; raises DatasetError."""

    def close(self) -> None:
        """Release the file."""


class Dataset:
    """The sources of `data.train` or `data.eval`, one after the other.

    Rows are numbered through: row `i` of the second source is `len(first) + i`.

    Args:
        sources: At least one.
        seed: Of the order.

    Raises:
        ConfigError: A file is missing, of an unknown kind, empty, or a column map is wrong.
    """

    def __init__(self, sources: Sequence[DataSource], *, seed: int) -> None:
        self._seed = seed
        self._columns = [source.columns for source in sources]
        self._files = [open_file(source) for source in sources]
        self._ends = np.cumsum([len(file) for file in self._files])
        self._schedule = _schedule([source.weight for source in sources], seed)
        self._ranks = _ranks(self._schedule, len(sources))
        self._quotas = np.bincount(self._schedule, minlength=len(sources))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def row_of(self, position: int) -> int:
        """The row at a position of the endless shuffle."""
        block, slot = divmod(position, len(self._schedule))
        source = int(self._schedule[slot])
        turn = block * int(self._quotas[source]) + int(self._ranks[slot])
        length = len(self._files[source])
        epoch, place = divmod(turn, length)
        row = permuted(place, length, key=f"{self._seed}:{source}:{epoch}")
        return int(self._ends[source]) - length + row

    def read(self, row: int) -> Row:
        """One row.

        Raises:
            DatasetError: It cannot become a prompt, or there is no such row.
        """
        source, inner = self._locate(row)
        file = self._files[source]
        return parse_row(file.read(inner), self._columns[source], where=file.where(inner))

    def where(self, row: int) -> str:
        """File and line of a row."""
        source, inner = self._locate(row)
        return self._files[source].where(inner)

    def close(self) -> None:
        """Close all files."""
        for file in self._files:
            file.close()

    def _locate(self, row: int) -> tuple[int, int]:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a dataset with {len(self)} rows")
        source = int(np.searchsorted(self._ends, row, side="right"))
        return source, row - (int(self._ends[source]) - len(self._files[source]))


def open_file(source: DataSource) -> RowFile:
    """Open one source by the ending of its name.

    Raises:
        ConfigError: See `Dataset`.
    """
    for name in source.columns:
        if name not in COLUMNS:
            near = get_close_matches(name, COLUMNS, n=1)
            raise ConfigError(
                f"columns of {source.path}: unknown column {name!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"one of {', '.join(COLUMNS)}",
            )
    path = Path(source.path)
    match path.suffix.lower():
        case ".jsonl" | ".ndjson":
            return JsonlFile(path)
        case ".parquet":
            return ParquetFile(path)
        case ending:
            raise ConfigError(
                f"dataset {path}: unknown kind {ending or '(no ending)'!r}",
                hint="datasets are .jsonl or .parquet files",
            )


def _schedule(weights: Sequence[float], seed: int) -> np.ndarray:
    """Source of each slot of a block: shares by largest remainder, order by the seed."""
    if len(weights) == 1:
        return np.zeros(1, dtype=np.int64)
    exact = np.asarray(weights, dtype=np.float64) / sum(weights) * BLOCK
    quotas = np.maximum(1, np.floor(exact).astype(np.int64))
    while quotas.sum() < BLOCK:
        quotas[int(np.argmax(exact - quotas))] += 1
    while quotas.sum() > BLOCK:
        quotas[int(np.argmax(quotas - exact))] -= 1
    sorted_slots = np.repeat(np.arange(len(weights)), quotas)
    order = [permuted(slot, BLOCK, key=f"{seed}:mix") for slot in range(BLOCK)]
    return sorted_slots[order]


def _ranks(schedule: np.ndarray, num_sources: int) -> np.ndarray:
    """How many earlier slots of the block belong to the same source."""
    ranks = np.zeros(len(schedule), dtype=np.int64)
    for source in range(num_sources):
        slots = np.flatnonzero(schedule == source)
        ranks[slots] = np.arange(len(slots))
    return ranks
