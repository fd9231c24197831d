"""Programs that tests drive: the system's, else Debian's packages unpacked below the cache folder.

`chromium`   a browser for the page (marker `browser`)
`tmux`       a terminal for the monitor (marker `terminal`)

Neither needs root, and nothing is installed. Where apt knows no mirror, the tests are skipped.
`python -m tests.packages` fetches both before the tests, and says what it has.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.amqp.node import apt
from infra.amqp.node.install import cache_folder, locked

_FONTS = """\
<?xml version="1.0"?>
<fontconfig>
{}<cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""


PROGRAMS = {
    "chromium": ("usr/lib/chromium/chromium", ("chromium", "fonts-dejavu-core")),
    "tmux": ("usr/bin/tmux", ("tmux",)),
}
"""Name -> where its package has it, and the packages that it needs here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to start, and the environment that it needs."""

    path: Path
    environ: dict[str, str]

    @classmethod
    def below(cls, root: Path, program: str) -> "Program":
        """Of unpacked packages: their libraries and fonts come along."""
        libraries = {str(path.parent) for path in root.glob("**/*-linux-*/**/lib*.so*")}
        environ = {**os.environ, "LD_LIBRARY_PATH": ":".join(sorted(libraries))}
        fonts = root / "fonts.conf"
        if fonts.exists():
            environ["FONTCONFIG_FILE"] = str(fonts)
        return cls(path=root / program, environ=environ)


class NoMirror(Exception):
    """The program is not on this machine, and apt knows nowhere to fetch it from."""


@pytest.fixture(scope="session")
def chromium() -> Program:
    """A browser: start it with `environ`."""
    return _found_or_skipped("chromium")


@pytest.fixture(scope="session")
def tmux() -> Program:
    """A terminal multiplexer: start it with `environ`."""
    return _found_or_skipped("tmux")


def find(name: str) -> Program:
    """A program of `PROGRAMS`, fetched unless it is there already.

    Raises:
        NoMirror: It is not there, and apt knows no mirror.
        OSError, subprocess.SubprocessError: The mirror does not have it, or is away.
    """
    installed = shutil.which(name)
    if installed is not None:
        return Program(path=Path(installed), environ=dict(os.environ))
    program, packages = PROGRAMS[name]
    cache = cache_folder()
    release = apt.os_release().get("VERSION_CODENAME", "any")
    final = cache / f"{name}-{release}-{os.uname().machine}"
    if not (final / program).exists():
        if not (apt.available() and apt.source_files()):
            raise NoMirror(f"no {name} on this machine, and apt knows no mirror that has it")
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f"{name}.lock"):
            if not (final / program).exists():
                _fetch(packages, program, final)
    return Program.below(final, program)


def _found_or_skipped(name: str) -> Program:
    try:
        return find(name)
    except NoMirror as error:
        pytest.skip(str(error))


def _fetch(packages: Sequence[str], program: str, final: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="packages-", dir=final.parent) as scratch:
        root = apt.unpack(apt.download(Path(scratch), packages), Path(scratch) / "root")
        if not (root / program).exists():
            raise OSError(f"the packages {', '.join(packages)} hold no {program}")
        folders = ("/usr/share/fonts", f"{final}/usr/share/fonts")
        fonts = "".join(f"<dir>{folder}</dir>\n" for folder in folders)
        (root / "fonts.conf").write_text(_FONTS.format(fonts), encoding="utf-8")
        shutil.rmtree(final, ignore_errors=True)
        root.rename(final)


def _show() -> None:
    for name in PROGRAMS:
        try:
            print(f"{name}: {find(name).path}", flush=True)
        except NoMirror as error:
            print(f"{error}: its tests are skipped", flush=True)


if __name__ == "__main__":
    _show()
