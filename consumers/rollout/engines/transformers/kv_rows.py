"""A key-value cache with one row per running sequence.

Rows 0..n-1 are in use and each starts at column 0, so a sequence joins or leaves without moving
the others; only the last row changes places with the one that leaves. What lies beyond a row's
length is masked by the caller, and overwritten as the row grows.
"""

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_FIRST_COLUMNS = 128


class RowCache(Cache):  # type: ignore[misc]
    """Keys and values of all layers; a forward pass says beforehand what it is going to write.

    Args:
        num_layers: Of the model.
        num_rows: Sequences at a time.
        max_columns: Longest sequence.
    """

    def __init__(self, *, num_layers: int, num_rows: int, max_columns: int) -> None:
        super().__init__(layers=[_RowLayer(self) for _ in range(num_layers)])
        self.num_rows = num_rows
        self._max_columns = max_columns
        self.columns = min(_FIRST_COLUMNS, max_columns)
        self.written: tuple[torch.Tensor, torch.Tensor]
        self.seen = (slice(0, 0), slice(0, 0))

    def writes(self, first_row: int, columns: torch.Tensor, longest: int) -> None:
        """The next pass writes these columns of rows that follow each other.

        Args:
            first_row: Of those rows.
            columns: (rows, width), on the device of the cache.
            longest: Columns to attend to.
        """
        self._reserve(longest)
        last_row = first_row + len(columns)
        rows = torch.arange(first_row, last_row, device=columns.device)
        self.written = (rows[:, None], columns)
        self.seen = (slice(first_row, last_row), slice(0, longest))

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy a row's first `length` columns to another row."""
        for layer in self.layers:
            layer.stored_keys[target, :length] = layer.stored_keys[source, :length]
            layer.stored_values[target, :length] = layer.stored_values[source, :length]

    def exchange(self, row: int, other: int, length: int) -> None:
        """Exchange the first `length` columns of two rows."""
        for layer in self.layers:
            for stored in (layer.stored_keys, layer.stored_values):
                kept = stored[row, :length].clone()
                stored[row, :length] = stored[other, :length]
                stored[other, :length] = kept

    def _reserve(self, columns: int) -> None:
        if columns <= self.columns:
            return
        self.columns = min(max(columns, 2 * self.columns), self._max_columns)
        for layer in self.layers:
            layer.widen(self.columns)


class _RowLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer, (rows, columns, heads, head size); memory is taken at the first write."""

    def __init__(self, cache: RowCache) -> None:
        super().__init__()
        self._cache = cache
        self.stored_keys = torch.empty(0)
        self.stored_values = torch.empty(0)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Take the memory, with heads and head size of the first states."""
        shape = (self._cache.num_rows, self._cache.columns)
        self.stored_keys = key_states.new_zeros(*shape, key_states.shape[1], key_states.shape[3])
        self.stored_values = value_states.new_zeros(
            *shape, value_states.shape[1], value_states.shape[3]
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new states, (rows, heads, new columns, head size); return all to attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        cache = self._cache
        self.stored_keys[cache.written] = key_states.transpose(1, 2)
        self.stored_values[cache.written] = value_states.transpose(1, 2)
        return (
            self.stored_keys[cache.seen].transpose(1, 2),
            self.stored_values[cache.seen].transpose(1, 2),
        )

    def widen(self, columns: int) -> None:
        """Make room for longer sequences."""
        if not self.is_initialized:
            return
        for name in ("stored_keys", "stored_values"):
            old = getattr(self, name)
            new = old.new_zeros(old.shape[0], columns, *old.shape[2:])
            new[:, : old.shape[1]] = old
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns to attend to; the caller always brings its own mask."""
        return self._cache.seen[1].stop, 0

    def get_seq_length(self) -> int:
        """Not one number here; the caller always brings its own positions."""
        return 0

    def get_max_length(self) -> int:
        """No maximum."""
        return -1

    def get_max_cache_shape(self) -> int:
        """No maximum; older name."""
        return -1
