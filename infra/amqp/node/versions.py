"""Other RabbitMQ versions than this system's own: Debian's packages of another suite, unpacked
with their Erlang, C library and all else that they load, so that they run on any Linux of the same
processor.

    version -> suite -> download (apt) -> unpack -> relocate (patchelf) -> rename into place
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from infra.amqp.errors import BrokerNotInstalled
from infra.amqp.node import apt
from infra.amqp.node.install import PREFIX_VARIABLE, Install, cache_folder, locked, relocate_scripts

SUITES = {"3.10": "bookworm", "4.0": "trixie", "4.3": "forky"}
"""RabbitMQ's version -> the Debian suite that carries it."""

_TAKEN = ("erlang", "rabbitmq", "lib", "patchelf")
_ELF = b"\x7fELF"


def fetch_version(version: str, into: Path | None = None) -> Install:
    """A RabbitMQ of this version; fetched unless it is there already.

    Args:
        version: A key of `SUITES`.
        into: The prefix folder; made or replaced. None: below the cache folder.

    Raises:
        BrokerNotInstalled: Unknown version, no Debian mirror, or the mirror has another version.
    """
    if version not in SUITES:
        raise BrokerNotInstalled(
            f"no RabbitMQ {version!r} to fetch", hint=f"one of {', '.join(SUITES)}"
        )
    name = f"rabbitmq-{version}-{os.uname().machine}"
    final = (into or cache_folder() / name).absolute()
    install = Install(prefix=final)
    final.parent.mkdir(parents=True, exist_ok=True)
    with locked(final.parent / f".{final.name}.lock"):
        if install.complete and _matches(install.version(), version):
            return install
        if final.exists() and any(final.iterdir()):
            raise BrokerNotInstalled(
                f"{final} holds something else", hint="name an empty or a new folder"
            )
        with tempfile.TemporaryDirectory(prefix="rabbitmq-", dir=final.parent) as scratch:
            root = _fetch(version, Path(scratch), final)
            shutil.rmtree(final, ignore_errors=True)
            root.rename(final)
    return install


def _fetch(version: str, scratch: Path, final: Path) -> Path:
    suite = SUITES[version]
    hint = f"point {PREFIX_VARIABLE} to an unpacked RabbitMQ with Erlang"
    texts = [path.read_text(encoding="utf-8") for path in apt.source_files()]
    sources = [source for text in texts for source in apt.parse_sources(text)]
    codename = apt.os_release().get("VERSION_CODENAME", "")
    debian = apt.os_release().get("ID") == "debian" and apt.available()
    stanza = apt.stanza_for(suite, sources, codename=codename) if debian else None
    if stanza is None:
        raise BrokerNotInstalled(
            f"RabbitMQ {version} comes from Debian's {suite}, "
            "and apt has no Debian mirror configured here",
            hint=hint,
        )
    try:
        archives = apt.download(scratch, ["rabbitmq-server", "patchelf"], sources=stanza)
        taken = [path for path in archives if path.name.startswith(_TAKEN)]
        root = apt.unpack(taken, scratch / "root")
        found = Install(prefix=root).version()
        if not _matches(found, version):
            raise BrokerNotInstalled(
                f"Debian's {suite} has RabbitMQ {found or 'none'} now, not {version}", hint=hint
            )
        relocate_scripts(root, final)
        _relocate_programs(root, final)
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stderr", None) or str(error)).strip()[-500:]
        raise BrokerNotInstalled(f"could not fetch RabbitMQ {version}: {detail}", hint=hint) from (
            error
        )
    return root


def _matches(found: str, version: str) -> bool:
    return re.match(rf"{re.escape(version)}(\.|$)", found) is not None


def _relocate_programs(root: Path, final: Path) -> None:
    """Make Erlang's programs load what came along instead of the system's: their interpreter and
    library path are absolute paths inside them."""
    loader = _loader(root)
    folders = sorted({path.parent for path in root.glob("**/*-linux-gnu*/lib*.so*")})
    at_work = [str(loader), "--library-path", ":".join(map(str, folders))]
    patchelf = [*at_work, str(root / "usr/bin/patchelf")]
    search = ":".join(str(final / folder.relative_to(root)) for folder in folders)
    interpreter = final / loader.relative_to(root)
    for program in _elf_files(root / "usr/lib/erlang"):
        options = ["--force-rpath", "--set-rpath", search]  # rpath reaches what libraries load
        if _has_interpreter(patchelf, program):
            options += ["--set-interpreter", str(interpreter)]
        apt.run([*patchelf, *options, str(program)])


def _loader(root: Path) -> Path:
    found = sorted(p for p in root.glob("**/ld-linux-*.so.*") if p.is_file() and not p.is_symlink())
    if not found:
        raise OSError("the packages hold no dynamic loader")
    return found[0]


def _has_interpreter(patchelf: list[str], program: Path) -> bool:
    try:
        apt.run([*patchelf, "--print-interpreter", str(program)])
    except subprocess.CalledProcessError:
        return False
    return True


def _elf_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.glob("**/*")):
        if (
            path.is_file()
            and not path.is_symlink()
            and (os.access(path, os.X_OK) or ".so" in path.name)
        ):
            with path.open("rb") as handle:
                if handle.read(4) == _ELF:
                    yield path
