"""Folders named `step_<n>` that exist complete or not at all."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from infra.runs.durable import sync
from infra.runs.failpoints import FailPoint, halves, reach

_NUMBERED = re.compile(r"step_(\d+)")
_REMNANT = re.compile(r"\.step_\d+\..+")


def create(target: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder under another name, make it durable, then give it its name.

    Raises:
        OSError: The disk is full or not writable, or `target` exists; nothing new has its name.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir()
        write(unfinished)
        for path in unfinished.rglob("*"):
            sync(path)
        sync(unfinished)
        reach(FailPoint.CHECKPOINT_WRITTEN)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    sync(target.parent)
    reach(FailPoint.CHECKPOINT_NAMED)


def replace_text(path: Path, text: str) -> None:
    """Overwrite a file durably: a crash leaves the old text or the new."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    write_text(fresh, text)
    sync(fresh)
    fresh.replace(path)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a small file."""
    with path.open("wb") as file:
        for part in halves(FailPoint.CHECKPOINT_TORN, text.encode()):
            file.write(part)
            file.flush()


def step_folders(parent: Path) -> list[Path]:
    """By step, oldest first; remnants of a crash are not among them."""
    if not parent.is_dir():
        return []
    named = ((_NUMBERED.fullmatch(path.name), path) for path in parent.iterdir())
    numbered = [(int(match[1]), path) for match, path in named if match and path.is_dir()]
    return [path for _, path in sorted(numbered)]


def prune(parent: Path, keep: int) -> None:
    """Delete all but the newest `keep` (at least one), and what a crash left unfinished."""
    for folder in step_folders(parent)[: -max(keep, 1)]:
        folder.rename(folder.with_name(f".{folder.name}.old"))
    for path in parent.iterdir():
        if _REMNANT.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
