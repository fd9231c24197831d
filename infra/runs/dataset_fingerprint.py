"""Which dataset a run trains on: two machines agree on the hash exactly when they agree on rows."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from infra.roles.errors import ConfigError
from schemas.config import DataSource, RunConfig
from schemas.headers import Purpose


def dataset_fingerprint(sources: Sequence[DataSource]) -> str:
    """sha256 (hex) over each source's bytes, columns and weight, in order; paths do not count.

    Files are streamed, so memory stays flat whatever their size.

    Raises:
        ConfigError: A file is missing or cannot be read.
    """
    whole = hashlib.sha256()
    for source in sources:
        kind = Path(source.path).suffix.lower()
        terms = {
            "kind": kind,
            "columns": source.columns,
            "weight": source.weight,
            "sha256": _file_sha256(Path(source.path)),
        }
        whole.update(json.dumps(terms, sort_keys=True).encode() + b"\n")
    return whole.hexdigest()


def credit_fingerprint(config: RunConfig, purpose: Purpose) -> str:
    """The fingerprint that a credit of this purpose carries: of `data.train` or of `data.eval`."""
    return dataset_fingerprint(config.data.train if purpose is Purpose.TRAIN else config.data.eval)


def _file_sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(
            f"cannot read dataset {path}: {error.strerror or error}",
            hint="check the path under [data]; relative paths start where the command runs",
        ) from error
