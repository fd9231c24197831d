"""Changing the weights of a server: pause, update, prove, go on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from consumers.rollout.engines.base import EngineFailed, WeightsRefused
from consumers.rollout.engines.layout import Layout, check_layout
from consumers.rollout.engines.sglang.checksums import Digest, expected_checksums
from consumers.rollout.engines.sglang.client import Answer, Client, Unreachable
from consumers.rollout.engines.sglang.proof import Checksums, Proof
from infra.weights.fingerprint import TIED_HEAD
from infra.weights.prepared import PreparedWeights

_CONTROL_S = 60.0
_FLUSH_S = 30
_NOT_FLUSHED = "Weights were updated, but"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Weights that were looked at, and are safe to give to a server."""

    version: int
    fingerprint: str
    folder: Path
    checksums: Checksums


class ServerWeights:
    """What a server serves, and how it is made to serve something else.

    Args:
        client: Of the server.
        layout: What it must hold; see `layout_of_model`.
        digest: How it computes checksums, if that is known.
        certain: Whether it is known for sure.
        update_timeout_s: For one update.
    """

    def __init__(
        self,
        client: Client,
        layout: Layout,
        *,
        digest: Digest | None,
        certain: bool,
        update_timeout_s: float,
    ) -> None:
        self._client = client
        self._layout = layout
        self._update_timeout_s = update_timeout_s
        self._digest = digest
        self._proof = Proof(exact=digest is not None, certain=certain)

    def look_at(self, weights: PreparedWeights) -> Ready:
        """See that the server may have them: it serves whatever fits, loads what is incomplete
        without a word, and dies of a truncated file. Blocks.

        Raises:
            WeightsRefused: They do not fit, or their files do not.
        """
        check_layout(self._layout, weights)
        folder = folder_of(weights)
        on_disk, expected = _headers(folder), {n: shape for n, (_, shape) in self._layout.items()}
        if TIED_HEAD not in expected:
            on_disk.pop(TIED_HEAD, None)
        if on_disk != expected:
            wrong = min(on_disk.items() ^ expected.items())[0]
            raise WeightsRefused(f"version {weights.version}: {folder} lacks or spoils {wrong}")
        checksums: Checksums = {}
        if self._digest is not None and self._proof.exact:
            tensors = {name: weights.tensors[name] for name in self._layout}
            checksums = expected_checksums(tensors, self._digest)
        return Ready(
            version=weights.version,
            fingerprint=weights.fingerprint,
            folder=folder,
            checksums=checksums,
        )

    async def change(self, to: Ready, *, served: Ready | None) -> None:
        """Stop generation, update, prove, go on. Running requests are computed again.

        Args:
            to: What to load.
            served: What is served now; None if that is not known.

        Raises:
            WeightsRefused: The server did not take them; what it served it serves on.
            EngineFailed: It is not known what it serves now.
        """
        await self._told("/pause_generation", {"mode": "retract"})
        refusal = await self._updated(to)
        if not refusal:
            await self.prove(to)
        elif served is not None:
            await self.prove(served)
        # Not before it is known what the server holds: it would go on with anything.
        await self._told("/continue_generation")
        if refusal:
            raise WeightsRefused(f"version {to.version}: SGLang did not load it: {refusal}")

    async def prove(self, expected: Ready) -> str:
        """See what the server holds; returns how much that proves.

        Raises:
            EngineFailed: Something else.
        """
        answer = await self._told("/weights_checker", {"action": "checksum"})
        ranks = answer.json().get("ranks") or []
        try:
            found = {
                f"{index}:{name}" if len(ranks) > 1 else name: str(checksum)
                for index, rank in enumerate(ranks)
                for name, checksum in rank["checksums"].items()
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise EngineFailed(
                f"SGLang's checksums are not understood: {answer.text[:300]}"
            ) from error
        problem = self._proof.problem(expected.fingerprint, expected.checksums, found)
        if problem:
            raise EngineFailed(
                f"SGLang does not hold version {expected.version}, which it was told to load: "
                f"{problem}"
            )
        return self._proof.coverage(expected.checksums, found)

    async def _updated(self, to: Ready) -> str:
        """Update; returns why the server says that it did not."""
        body = {
            "model_path": str(to.folder),
            "weight_version": str(to.version),
            "flush_cache": True,
            "abort_all_requests": False,
        }
        for _ in range(2):
            answer = await self._control("/update_weights_from_disk", body, self._update_timeout_s)
            said = answer.json().get("message") or f"{answer.status} {answer.text[:300]}"
            message = str(said)
            if answer.ok and answer.json().get("success"):
                return ""
            if not message.startswith(_NOT_FLUSHED):
                return message
            # It holds them under the old name, beside old keys and values.
            await self._told(f"/flush_cache?timeout={_FLUSH_S}")
        raise EngineFailed(f"SGLang updated its weights, but not its cache: {message}")

    async def _told(self, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        answer = await self._control(path, body, _CONTROL_S)
        if not answer.ok:
            raise EngineFailed(f"SGLang answers {answer.status} to {path}: {answer.text[:300]}")
        return answer

    async def _control(self, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Answer:
        try:
            return await self._client.control(path, body, timeout_s=timeout_s)
        except Unreachable as error:
            raise EngineFailed(f"SGLang is lost, and what it serves not known: {error}") from error


def folder_of(weights: PreparedWeights) -> Path:
    """The Hugging Face folder that a server can load.

    Raises:
        WeightsRefused: There is none.
    """
    folders = {file.parent for file in weights.files} or {weights.model_folder}
    folder = folders.pop()
    if folders or not (folder / "config.json").is_file():
        raise WeightsRefused(
            f"version {weights.version} lies in no model folder: {folder} has no config.json, or "
            "its files are in several",
            hint="SGLang loads whole Hugging Face folders",
        )
    return folder


def layout_of_model(folder: Path, dtype: str) -> Layout:
    """What a server holds after it loaded a model folder.

    Raises:
        WeightsRefused: The folder holds no complete safetensors files.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tied = config.get("text_config", config).get("tie_word_embeddings", False)
    return {
        name: (dtype, shape)
        for name, shape in _headers(folder).items()
        if not (tied and name == TIED_HEAD)
    }


def _headers(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the files of a folder; a truncated file is found out."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    found[name] = tuple(file.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise WeightsRefused(f"{path} cannot be read: {error}") from error
    if not found:
        raise WeightsRefused(f"{folder} holds no safetensors file")
    return found
