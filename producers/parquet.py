"""Random access to a parquet file: row groups stay in Arrow memory, a row becomes Python alone."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from infra.roles.errors import ConfigError
from producers.rows import DatasetError

_KEPT_ROW_GROUPS = 4


class ParquetFile:
    """Rows of a `.parquet` file.

    Raises:
        ConfigError: The file is missing, not parquet, or without rows.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        self.path = path
        try:
            self._file: Any = pyarrow.parquet.ParquetFile(path, memory_map=True)
        except (OSError, pyarrow.ArrowInvalid) as error:
            raise ConfigError(
                f"cannot read dataset {path}: {error}",
                hint="check the path under [data]; relative paths start where the command runs",
            ) from error
        metadata = self._file.metadata
        sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        if not sum(sizes):
            raise ConfigError(f"dataset {path} has no rows")
        self._groups: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def where(self, row: int) -> str:
        """`file row n`, rows counted from 0 as data frames do."""
        return f"{self.path} row {row}"

    def read(self, row: int) -> object:
        """The row as a dictionary.

        Raises:
            DatasetError: Its part of the file is damaged.
        """
        import pyarrow

        group = int(np.searchsorted(self._ends, row, side="right"))
        first = int(self._ends[group - 1]) if group else 0
        try:
            return self._row_group(group).slice(row - first, 1).to_pylist()[0]
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            raise DatasetError(f"{self.where(row)}: cannot be read: {error}") from error

    def close(self) -> None:
        """Close the file; reading fails afterwards."""
        self._groups.clear()
        self._file.close()

    def _row_group(self, number: int) -> Any:
        if number not in self._groups:
            self._groups[number] = self._file.read_row_group(number)
        self._groups.move_to_end(number)
        if len(self._groups) > _KEPT_ROW_GROUPS:
            self._groups.popitem(last=False)
        return self._groups[number]
