"""What a producer knows: its datasets, their fingerprints, and which tasks a credit stands for."""

from collections.abc import Sequence

from infra.roles.errors import ConfigError
from infra.runs.dataset_fingerprint import credit_fingerprint
from producers.datasets import Dataset
from producers.evals import check_size, members_by_row
from producers.rows import DatasetError
from producers.tasks import build_task, for_member
from schemas.config import RunConfig
from schemas.headers import Purpose
from schemas.work import Credit, RolloutTask


def open_datasets(config: RunConfig) -> dict[Purpose, Dataset]:
    """The datasets that the recipe has.

    Raises:
        ConfigError: See `Books`.
    """
    sources = {Purpose.TRAIN: config.data.train, Purpose.EVAL: config.data.eval}
    datasets = {
        purpose: Dataset(files, seed=config.run.seed) for purpose, files in sources.items() if files
    }
    if Purpose.EVAL in datasets:
        check_size(config, datasets[Purpose.EVAL])
    return datasets


class Books:
    """The datasets of a recipe, opened and fingerprinted: reads every file once.

    Raises:
        ConfigError: A file is missing, empty or of an unknown kind, or fewer rows are held out
            than `eval.prompts`.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.datasets = open_datasets(config)
        self._fingerprints = {
            purpose: credit_fingerprint(config, purpose) for purpose in self.datasets
        }

    def close(self) -> None:
        """Close the files."""
        for dataset in self.datasets.values():
            dataset.close()

    def check_credit(self, credit: Credit) -> None:
        """Refuse a credit that means other prompts than ours.

        Raises:
            ConfigError: Its dataset fingerprint, seed or group size differs.
        """
        evaluating = credit.purpose is Purpose.EVAL
        size = self._config.eval.samples if evaluating else self._config.algorithm.group_size
        ours = {
            "dataset fingerprint": self._fingerprints.get(credit.purpose, "none"),
            "seed": self._config.run.seed,
            "eval.samples" if evaluating else "group size": size,
        }
        theirs = (credit.dataset_fingerprint, credit.seed, credit.group_size)
        for (name, own), other in zip(ours.items(), theirs, strict=True):
            if own != other:
                raise ConfigError(
                    f"credit {credit.group} ({credit.purpose}) has {name} {other}, ours is {own}",
                    hint="start this producer with the trainer's recipe and the same dataset files",
                )

    def rows_of(self, credit: Credit) -> dict[int, Sequence[int]]:
        """The members asked for, under the row of each."""
        if credit.purpose is Purpose.EVAL:
            return dict(members_by_row(credit.indexes, credit.group_size))
        if not credit.indexes:
            return {}
        position = credit.group if credit.position is None else credit.position
        return {self.datasets[Purpose.TRAIN].row_of(position): credit.indexes}

    def tasks(self, credit: Credit, row: int, members: Sequence[int]) -> list[RolloutTask]:
        """The tasks of some members, all of one row.

        Raises:
            DatasetError: The row does not exist or cannot become a prompt.
        """
        dataset = self.datasets.get(credit.purpose)
        if dataset is None or row >= len(dataset):
            raise DatasetError(
                f"data.{credit.purpose} has no row {row}: "
                f"{0 if dataset is None else len(dataset)} rows"
            )
        task = build_task(self._config, credit, dataset.read(row), row_number=row)
        return [for_member(task, credit, index) for index in members]
