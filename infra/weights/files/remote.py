"""Versions behind a URL that fsspec knows: S3, other object stores, ...

Objects appear whole, one by one; what makes them a version is the manifest, which is created
exclusively and last. Credentials come from the environment or the driver's own files.
"""

import contextlib
import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from fsspec.asyn import AsyncFileSystem
from fsspec.core import url_to_fs
from fsspec.spec import AbstractFileSystem

from infra.amqp.url import mask_url
from infra.roles.errors import ConfigError
from infra.weights.errors import DISK_FULL, StoreUnusable, WeightsCorrupt
from infra.weights.files.base import Chunks, Unsure, verify
from schemas.control import WeightFile

logger = logging.getLogger(__name__)

_PAUSES_S = (0.2, 0.5, 1.0)
"""Before a file is tried to be created again, when it is not clear why it could not."""
_MAX_THREADS = 8
_PIECE_BYTES = 16 << 20
"""A driver copies what it is given before it sends it."""
_EXTRAS = {"s3": "warren[s3]", "s3a": "warren[s3]"}
"""Protocol -> what to install."""


class RemoteFiles:
    """`Files` behind a URL.

    Args:
        url: `s3://bucket/prefix`, say.

    Raises:
        ConfigError: There is no driver for it, or it is not installed.
    """

    def __init__(self, url: str) -> None:
        self._where = mask_url(url)
        protocol = url.partition("://")[0]
        try:
            self._fs, root = url_to_fs(url)
        except ImportError as error:
            package = _EXTRAS.get(protocol)
            raise ConfigError(
                f"the weight store {self._where} needs a package that is not installed: {error}",
                hint=f"pip install '{package}'" if package else "install the package named above",
            ) from error
        except ValueError as error:
            raise ConfigError(
                f"the weight store {self._where} cannot be addressed: {error}",
                hint="[weights] store is a folder, or a URL as in s3://bucket/prefix",
            ) from error
        self._root = root.rstrip("/")

    @property
    def where(self) -> str:
        """Its URL, without secrets."""
        return self._where

    def check(self) -> None:
        """As `Files.check`; also refuses what cannot create a file exclusively."""
        probe = f".probe-{secrets.token_hex(4)}"
        try:
            exclusive = self._creates_exclusively(probe)
        except OSError as error:
            raise StoreUnusable(
                f"cannot write to the weight store {self._where}: {error}",
                hint="look at the address, the network, and the credentials in the environment "
                "(for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, ...)",
            ) from error
        finally:
            with contextlib.suppress(OSError), self._driver():
                self._fs.rm_file(self._path(probe))
        if not exclusive:
            raise StoreUnusable(
                f"the weight store {self._where} cannot create a file exclusively: two trainers "
                f"could replace each other's versions",
                hint="use a folder, or an object store with conditional writes (If-None-Match)",
            )

    def write(self, folder: str, contents: Mapping[str, Chunks]) -> tuple[WeightFile, ...]:
        """As `Files.write`; its files are sent beside each other, and appear one by one."""
        with ThreadPoolExecutor(_MAX_THREADS) as pool:
            return tuple(pool.map(lambda name: self._send(folder, name, contents[name]), contents))

    def create(self, name: str, body: bytes) -> None:
        """As `Files.create`. `body` must be unlike any other's: an answer may get lost, and then
        it is found there."""
        for pause_s in (*_PAUSES_S, None):
            try:
                with self._driver():
                    self._fs.pipe_file(self._path(name), body, mode="create")
                return
            except OSError as error:
                found = self._look(name)
                if found is not None:
                    if found == body:
                        return
                    raise FileExistsError(f"{name} is in {self._where} already") from error
                if pause_s is None or isinstance(error, FileNotFoundError):  # then: no bucket
                    raise
                logger.warning("%s: %s cannot be created: %s", self._where, name, error)
                time.sleep(pause_s)

    def read(self, name: str) -> bytes:
        """As `Files.read`."""
        with self._driver():
            return bytes(self._fs.cat_file(self._path(name)))

    def names(self, folder: str = "") -> list[str]:
        """As `Files.names`."""
        try:
            with self._driver():
                self._fs.invalidate_cache()
                found = self._fs.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted({path.rstrip("/").rpartition("/")[2] for path in found})

    def remove(self, folder: str) -> None:
        """As `Files.remove`."""
        try:
            with self._driver():
                self._fs.invalidate_cache()
                self._fs.rm(self._path(folder), recursive=True)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("cannot remove %s from %s: %s", folder, self._where, error)

    def fetch(self, folder: str, file: WeightFile, cache: Path) -> Path:
        """As `Files.fetch`: a copy at `<cache>/<folder>/<name>`, made once."""
        target = cache / folder / file.name
        if not target.exists():
            self._copy(self._path(folder, file.name), target, file)
        try:
            return verify(target, file)
        except WeightsCorrupt:
            target.unlink(missing_ok=True)
            raise

    def _send(self, folder: str, name: str, chunks: Chunks) -> WeightFile:
        digest, size_bytes = sha256(), 0
        with self._driver(), self._fs.open(self._path(folder, name), "wb") as file:
            for chunk in chunks:
                for start in range(0, len(chunk), _PIECE_BYTES):
                    file.write(chunk[start : start + _PIECE_BYTES])
                digest.update(chunk)
                size_bytes += len(chunk)
        return WeightFile(name=name, size_bytes=size_bytes, sha256=digest.hexdigest())

    def _copy(self, path: str, target: Path, file: WeightFile) -> None:
        partial = target.with_name(f".{file.name}.{secrets.token_hex(4)}")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._driver():
                self._fs.invalidate_cache()
                found = self._fs.info(path)["size"]
                if found != file.size_bytes:
                    raise WeightsCorrupt(
                        f"{path} has {found} bytes, {file.size_bytes} were written"
                    )
                self._fs.get_file(path, str(partial))
            partial.rename(target)
        except OSError as error:
            if error.errno in DISK_FULL:  # ours: reading fills no store
                raise
            raise WeightsCorrupt(f"{path} cannot be read: {error}") from error
        finally:
            partial.unlink(missing_ok=True)

    def _creates_exclusively(self, name: str) -> bool:
        """Drivers that only look before they write inherit fsspec's own `pipe_file`."""
        driver = type(self._fs)
        looks = driver.pipe_file is AbstractFileSystem.pipe_file
        if looks and not issubclass(driver, AsyncFileSystem):
            return False
        self.create(name, b"first")
        try:
            with self._driver():
                self._fs.pipe_file(self._path(name), b"second", mode="create")
        except OSError:
            return self.read(name) == b"first"
        return False

    def _look(self, name: str) -> bytes | None:
        try:
            return self.read(name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unsure(f"{name} may be in {self._where}, or not: {error}") from error

    def _path(self, *parts: str) -> str:
        return "/".join((self._root, *filter(None, parts)))

    @contextlib.contextmanager
    def _driver(self) -> Iterator[None]:
        """The boundary to botocore, aiohttp and their like: what they raise becomes `OSError`."""
        try:
            yield
        except (OSError, WeightsCorrupt):
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
