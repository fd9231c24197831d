"""Where RabbitMQ comes from: a given prefix, the installed package, or Debian's package unpacked
privately (no root, nothing installed, no service started)."""

import fcntl
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.amqp.errors import BrokerNotInstalled
from infra.amqp.node import apt

logger = logging.getLogger(__name__)

PREFIX_VARIABLE = "WARREN_RABBITMQ_PREFIX"
_HINT = (
    "install rabbitmq-server, or name a running broker in [broker] url or WARREN_BROKER_URL, "
    f"or point {PREFIX_VARIABLE} to an unpacked RabbitMQ with Erlang"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """A RabbitMQ and the Erlang that it runs on, below one prefix (`/` when installed)."""

    prefix: Path

    @property
    def server(self) -> Path:
        """The start script. Never the wrapper in /usr/sbin: that one changes the user."""
        return self.prefix / "usr/lib/rabbitmq/bin/rabbitmq-server"

    @property
    def erlang_root(self) -> Path:
        """Erlang's ROOTDIR."""
        return self.prefix / "usr/lib/erlang"

    @property
    def epmd(self) -> Path:
        """Erlang's port mapper."""
        return next(iter(sorted(self.erlang_root.glob("erts-*/bin/epmd"))))

    @property
    def complete(self) -> bool:
        """Whether server and Erlang are both there."""
        return self.server.exists() and any(self.erlang_root.glob("erts-*/bin/epmd"))

    def version(self) -> str:
        """RabbitMQ's version, such as `4.0.5`; empty when it is not there."""
        found = sorted(self.prefix.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*"))
        return found[-1].name.partition("-")[2] if found else ""

    def library_path(self) -> str:
        """Folders of shared libraries that came along with an unpacked package; empty where its
        programs know them, for what the system has must not load another system's C library."""
        if self.prefix == Path("/") or any(self.prefix.glob("usr/lib*/**/ld-linux-*.so.*")):
            return ""
        found = self.prefix.glob("usr/lib/*-linux-*/lib*.so*")
        return ":".join(sorted({str(path.parent) for path in found}))


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where unpacked packages are kept: `$XDG_CACHE_HOME/warren`, else `~/.cache/warren`."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "warren"


def find_install(environ: Mapping[str, str] = os.environ) -> Install | None:
    """A native RabbitMQ, unpacked now if need be; None when only a container is left.

    Raises:
        BrokerNotInstalled: The prefix variable names a folder without RabbitMQ.
    """
    chosen = environ.get(PREFIX_VARIABLE)
    if chosen:
        install = Install(prefix=Path(chosen).absolute())
        if not install.complete:
            raise BrokerNotInstalled(
                f"{PREFIX_VARIABLE}={chosen} holds no RabbitMQ with Erlang",
                hint=f"it should contain {install.server.relative_to(install.prefix)} and "
                "usr/lib/erlang; unset it to look elsewhere",
            )
        return install
    installed = Install(prefix=Path("/"))
    if installed.complete:
        return installed
    return unpacked_package(cache_folder(environ))


def not_installed() -> BrokerNotInstalled:
    """The error for a machine without any way to a broker."""
    return BrokerNotInstalled("no RabbitMQ on this machine, and none could be fetched", hint=_HINT)


def unpacked_package(cache: Path) -> Install | None:
    """Debian's or Ubuntu's RabbitMQ below `cache`, fetched once; None when that fails."""
    if not apt.available():
        return None
    final = cache / f"rabbitmq-{_release()}"
    install = Install(prefix=final)
    if install.complete:
        return install
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / "rabbitmq.lock"):
            if install.complete:
                return install
            logger.info("fetching RabbitMQ into %s (once, about 60 MB)", final)
            with tempfile.TemporaryDirectory(prefix="rabbitmq-", dir=cache) as scratch:
                archives = apt.download(Path(scratch), ["rabbitmq-server"])
                root = apt.unpack(archives, Path(scratch) / "root")
                if not Install(prefix=root).complete:
                    raise OSError("the packages hold no RabbitMQ with Erlang")
                relocate_scripts(root, final)
                shutil.rmtree(final, ignore_errors=True)
                root.rename(final)
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stderr", None) or str(error)).strip()[-500:]
        logger.warning("could not unpack RabbitMQ's package: %s", detail)
        return None
    return install


def _release() -> str:
    """Name of this system's release: packages of another one need another libc."""
    fields = apt.os_release()
    names = (fields.get("ID"), fields.get("VERSION_CODENAME"), os.uname().machine)
    return "-".join(name for name in names if name)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file against other processes."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def relocate_scripts(root: Path, final: Path) -> None:
    """Tell Erlang's start scripts where they will lie: Debian's accept no other way."""
    for script in (
        *root.glob("usr/lib/erlang/bin/erl"),
        *root.glob("usr/lib/erlang/erts-*/bin/erl"),
    ):
        text = script.read_text(encoding="utf-8")
        script.write_text(
            text.replace("=/usr/lib/erlang", f"='{final}/usr/lib/erlang'"), encoding="utf-8"
        )
