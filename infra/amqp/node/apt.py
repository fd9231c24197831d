"""Debian packages without installing: downloaded into a private apt root, unpacked anywhere.

No root rights, no service started, nothing of the system changed. Mirrors and keys are those that
the system's own apt is configured with.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

APT_TIMEOUT_S = 600.0
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of packages that the system's apt knows."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    signed_by: str
    """A keyring's path; empty: apt's own."""


def available() -> bool:
    """Whether this system has Debian's tools."""
    return bool(shutil.which("apt-get") and shutil.which("dpkg-deb"))


def os_release() -> dict[str, str]:
    """Fields of `/etc/os-release`; empty where there is none."""
    release = Path("/etc/os-release")
    if not release.exists():
        return {}
    pairs = (line.partition("=") for line in release.read_text(encoding="utf-8").splitlines())
    return {key: value.strip('"') for key, _, value in pairs}


def parse_sources(text: str) -> Iterator[Source]:
    """Entries of a `.sources` (stanzas) or `.list` (one a line) file that hold binary packages."""
    for line in text.splitlines():
        found = re.match(r"deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)", line)
        if found:
            options = dict(o.partition("=")[::2] for o in (found[1] or "").split())
            signed_by = options.get("signed-by", "")
            yield Source(uris=(found[2],), suites=(found[3],), signed_by=signed_by)
    for stanza in re.split(r"\n\s*\n", text):
        lines = (line for line in stanza.splitlines() if not line.startswith(("#", " ")))
        pairs = (line.partition(":") for line in lines)
        fields = {key.lower(): value.split() for key, _, value in pairs}
        if "deb" in fields.get("types", ()) and fields.get("uris"):
            yield Source(
                uris=tuple(fields["uris"]),
                suites=tuple(fields.get("suites", ())),
                signed_by=next(iter(fields.get("signed-by", ())), ""),
            )


def source_files() -> list[Path]:
    """The system's source files, its distribution's own where they can be told from others."""
    system = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    readable = [p for p in system if p.suffix in {".list", ".sources"} and p.is_file()]
    return [p for p in readable if p.stem in {"sources", "debian", "ubuntu"}] or readable


def stanza_for(suite: str, sources: Sequence[Source], *, codename: str) -> str | None:
    """A source of another suite at the mirror that serves this system's; None without a mirror."""
    for source in sources:
        if codename in source.suites:
            signed_by = source.signed_by or (str(_KEYRING) if _KEYRING.exists() else "")
            text = f"Types: deb\nURIs: {source.uris[0]}\nSuites: {suite}\nComponents: main\n"
            return text + (f"Signed-By: {signed_by}\n" if signed_by else "")
    return None


def download(root: Path, packages: Sequence[str], *, sources: str | None = None) -> list[Path]:
    """Fetch packages with their dependencies.

    Args:
        root: An empty folder: the private apt root.
        sources: Text of a `.sources` file. None: the system's sources, and what the system has
            installed is not fetched; otherwise everything is.

    Raises:
        OSError, subprocess.SubprocessError: apt failed.
    """
    for folder in ("state/lists/partial", "cache/archives/partial", "sources.list.d"):
        (root / folder).mkdir(parents=True)
    if sources is None:
        shutil.copy("/var/lib/dpkg/status", root / "status")
        for path in source_files():
            shutil.copy(path, root / "sources.list.d" / path.name)
    else:
        (root / "status").touch()
        (root / "sources.list.d/other.sources").write_text(sources, encoding="utf-8")
    config = root / "apt.conf"
    config.write_text(_config(root), encoding="utf-8")
    environ = {**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C"}
    install = ["install", "--yes", "--no-install-recommends", "--download-only"]
    for command in (["update"], [*install, *packages]):
        run(["apt-get", "--quiet=2", *command], environ)
    return sorted((root / "cache/archives").glob("*.deb"))


def unpack(packages: Sequence[Path], root: Path) -> Path:
    """Lay the files of packages below `root`, which is made."""
    root.mkdir()
    for package in packages:
        run(["dpkg-deb", "--extract", str(package), str(root)])
    return root


def run(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """Run a tool to its end.

    Returns:
        Its standard output.

    Raises:
        OSError, subprocess.SubprocessError: It failed; `stderr` of the error says why.
    """
    return subprocess.run(
        argv,
        env=dict(environ),
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=APT_TIMEOUT_S,
    ).stdout


def _config(root: Path) -> str:
    return (
        f'Dir::State "{root}/state"; Dir::State::status "{root}/status"; '
        f'Dir::Cache "{root}/cache"; Dir::Etc::sourcelist "/dev/null"; '
        f'Dir::Etc::sourceparts "{root}/sources.list.d"; APT::Sandbox::User ""; '
        f'Acquire::Languages "none"; Acquire::Retries "2";\n'
    )
