"""Held-out evaluation: members of one evaluated version, in the file's order."""

from collections.abc import Sequence

from infra.roles.errors import ConfigError
from producers.datasets import Dataset
from schemas.config import RunConfig


def row_of_member(index: int, samples: int) -> int:
    """Row of the held-out set that member `index` samples from: `index = row * samples + n`."""
    return index // samples


def members_by_row(indexes: Sequence[int], samples: int) -> dict[int, list[int]]:
    """The members asked for, under the row that each belongs to."""
    rows: dict[int, list[int]] = {}
    for index in indexes:
        rows.setdefault(row_of_member(index, samples), []).append(index)
    return rows


def check_size(config: RunConfig, dataset: Dataset) -> None:
    """Refuse a recipe that evaluates more prompts than there are.

    Raises:
        ConfigError: `eval.prompts` exceeds the rows of `data.eval`.
    """
    if config.eval.prompts > len(dataset):
        raise ConfigError(
            f"eval.prompts={config.eval.prompts}, but data.eval has {len(dataset)} rows",
            hint=f"set eval.prompts to at most {len(dataset)}, or add rows",
        )
