"""Beginning a run on disk: never in a folder that another run has filled."""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from infra.roles.errors import ConfigError
from infra.roles.settings import as_json_tree
from infra.runs.code_version import code_version
from infra.runs.folder import RunFolder
from schemas.config import RunConfig

logger = logging.getLogger(__name__)


def prepare_folder(config: RunConfig, *, resume: bool = False, purge: bool = False) -> RunFolder:
    """Make the run folder and one for this attempt's logs, write what runs, point `latest` to it.

    Args:
        config: The run.
        resume: Go on in an existing folder.
        purge: Remove an existing folder first.

    Raises:
        ConfigError: The folder exists (or does not, for `resume`), or cannot be written.
    """
    folder = RunFolder.of(config)
    exists = folder.config.exists()
    if purge and exists:
        _refuse_if_in_use(folder)
        logger.info("removing the run that is in %s", folder.root)
        shutil.rmtree(folder.root)
    elif resume and not exists:
        raise ConfigError(
            f"nothing to resume: {folder.root} holds no run", hint="leave --resume out to begin it"
        )
    elif not resume and folder.root.is_dir() and any(folder.root.iterdir()):
        ways = "--resume goes on with it, --purge removes it" if exists else "it holds no run"
        raise ConfigError(
            f"{folder.root} exists already", hint=f"{ways}, run.name=... begins another"
        )
    try:
        folder.logs.mkdir(parents=True, exist_ok=True)
        _begin_attempt(folder.logs)
        _point_latest(folder.root)
    except OSError as error:
        raise _unwritable(folder.root, error) from error
    describe_run(config, folder)
    return folder


def describe_run(config: RunConfig, folder: RunFolder) -> None:
    """Write the resolved recipe and the code's version, where they are not those that are there.

    Raises:
        ConfigError: The folder cannot be written.
    """
    for path, values in (
        (folder.config, as_json_tree(config)),
        (folder.code, asdict(code_version())),
    ):
        text = json.dumps(values, indent=2) + "\n"
        try:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                folder.root.mkdir(parents=True, exist_ok=True)
                write_atomically(path, text)
        except OSError as error:
            raise _unwritable(folder.root, error) from error


@contextmanager
def claimed(config: RunConfig) -> Iterator[None]:
    """Be the only `up` of this run folder; a lock beside it ends with this process.

    Raises:
        ConfigError: Another one runs, or the place cannot be written.
    """
    root = RunFolder.of(config).root
    path = root.parent / f".{root.name}.lock"
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(path)
    except BlockingIOError:
        who = path.read_text(encoding="ascii", errors="replace").strip()
        raise ConfigError(
            f"{root} is in use: another 'up' (process {who or 'unknown'}) runs it",
            hint="stop that one first, or begin another run with run.name=...",
        ) from None
    except OSError as error:
        raise _unwritable(root, error) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.close()


def _locked(path: Path) -> TextIO:
    """Open and lock; again if its last holder removed the file meanwhile.

    Raises:
        BlockingIOError: Somebody holds it.
    """
    while True:
        with ExitStack() as opened:
            lock = opened.enter_context(path.open("a+", encoding="ascii"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.fstat(lock.fileno()).st_ino == path.stat().st_ino:
                lock.truncate(0)
                lock.write(str(os.getpid()))
                lock.flush()
                opened.pop_all()
                return lock


def _unwritable(root: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot write the run folder {root}: {error.strerror or error}",
        hint="choose another place with run.dir=...",
    )


def write_atomically(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace a file's content in one step; readers see the old or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path)


def _begin_attempt(logs: Path) -> None:
    numbers = [path.name.removeprefix("attempt_") for path in logs.glob("attempt_*")]
    number = max((int(one) for one in numbers if one.isdecimal()), default=0) + 1
    (logs / f"attempt_{number}").mkdir()
    _point_latest(logs / f"attempt_{number}")


def _point_latest(folder: Path) -> None:
    """Let the link `latest` beside it lead to a folder."""
    temporary = folder.parent / f".latest.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    temporary.replace(folder.parent / "latest")


def _refuse_if_in_use(folder: RunFolder) -> None:
    lock = folder.broker / "lock"
    if not lock.exists():
        return
    with lock.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"{folder.root} is in use: its broker runs", hint="stop that run first"
            ) from None
