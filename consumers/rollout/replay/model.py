"""The model folder of a run that was copied, perhaps to another machine."""

import sys
from pathlib import Path

from infra.roles.command.target import Target
from infra.runs.folder import RunFolder
from schemas.config import RunConfig


def with_model(found: Target) -> RunConfig:
    """The recipe; where its model folder is not here, with what the newest checkpoint left of it.

    Config, tokenizer and chat template are copied there. Who is still missing them is told by
    whatever loads them.
    """
    config = found.config
    if Path(config.model.path).is_dir():
        return config
    folder = _newest_hf(found.folder)
    if folder is None:
        return config
    sys.stderr.write(f"model.path is not here: tokenizer and chat template are those of {folder}\n")
    return config.model_copy(
        update={"model": config.model.model_copy(update={"path": str(folder)})}
    )


def _newest_hf(folder: RunFolder) -> Path | None:
    found = [path for path in folder.checkpoints.glob("step_*/hf") if path.is_dir()]
    steps = [(int(path.parent.name.removeprefix("step_")), path) for path in found]
    return max(steps)[1] if steps else None
