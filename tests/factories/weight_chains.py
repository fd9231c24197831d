"""Chains of versions as a trainer leaves them, with what goes wrong in a store."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file

from infra.weights.delta.encode import encode_delta
from infra.weights.errors import WeightsCorrupt
from infra.weights.fingerprint import fingerprint
from schemas.control import WeightFile, WeightsPublished

RUN_ID = "run"
Tensors = Mapping[str, torch.Tensor]

SMALL = 40
LARGE = (768, 1024)
"""Shape of a tensor above 1 MiB in bfloat16."""


def first_tensors() -> dict[str, torch.Tensor]:
    """Two large ones, three small ones, one of them no float."""
    torch.manual_seed(0)
    return {
        "embed.weight": torch.randn(LARGE).to(torch.bfloat16),
        "layer.weight": torch.randn(LARGE).to(torch.bfloat16),
        "layer.norm.weight": torch.randn(SMALL).to(torch.bfloat16),
        "scale": torch.tensor(1.5),
        "steps": torch.arange(6, dtype=torch.int64).reshape(2, 3),
    }


def moved(
    tensors: Tensors, version: int, names: tuple[str, ...] = ("layer.weight", "layer.norm.weight")
) -> dict[str, torch.Tensor]:
    """The next version: some elements of these tensors change."""
    torch.manual_seed(version)
    new = {name: tensor.clone() for name, tensor in tensors.items()}
    for name in names:
        flat = new[name].view(-1)
        chosen = torch.randperm(flat.numel())[: max(1, flat.numel() // 50)]
        flat[chosen] = torch.randn(len(chosen)).to(flat.dtype)
    return new


class ChainStore:
    """A store of one run in a folder; `versions` are the true tensors.

    Args:
        folder: Of everything.
        copies: Fetching makes a copy, as from a remote store.
    """

    def __init__(self, folder: Path, *, copies: bool = False) -> None:
        self.folder = folder
        self.copies = copies
        self.versions: dict[int, dict[str, torch.Tensor]] = {}
        self.manifests: dict[int, WeightsPublished] = {}
        self.fetched: list[str] = []
        self.on_fetch: Callable[[str], None] | None = None

    def publish(
        self,
        version: int,
        tensors: Tensors,
        *,
        base: int | None = None,
        full: bool = False,
        mode: Literal["step", "absolute"] = "step",
    ) -> WeightsPublished:
        """Add a version: in full, or from a base, or both."""
        folder = self.folder / f"v{version}"
        folder.mkdir(parents=True)
        fulls: list[Path] = []
        if full or base is None:
            names = sorted(tensors)
            for index, part in enumerate((names[:2], names[2:])):
                fulls.append(folder / f"full-{index}.safetensors")
                save_file({name: tensors[name] for name in part}, fulls[-1])
        deltas: list[Path] = []
        if base is not None:
            encoded = encode_delta(self.versions[base], tensors, mode=mode)
            deltas.append(folder / "delta.bin")
            deltas[0].write_bytes(b"".join(encoded.body))
        self.versions[version] = dict(tensors)
        self.manifests[version] = WeightsPublished(
            run_id=RUN_ID,
            version=version,
            incarnation=1,
            step=version,
            folder=folder.name,
            full=tuple(map(_described, fulls)),
            delta=tuple(map(_described, deltas)),
            base_version=base,
            fingerprint=fingerprint(tensors),
        )
        return self.manifests[version]

    def chain(self, num_deltas: int, *, keyframes: tuple[int, ...] = (0,)) -> WeightsPublished:
        """Version 0 in full and so many deltas after it; the newest manifest."""
        tensors = first_tensors()
        newest = self.publish(0, tensors)
        for version in range(1, num_deltas + 1):
            tensors = moved(tensors, version)
            newest = self.publish(version, tensors, base=version - 1, full=version in keyframes)
        return newest

    def files(self, version: int, kind: Literal["full", "delta"]) -> list[Path]:
        """Of a version."""
        one = self.manifests[version]
        return [self.folder / one.folder / file.name for file in getattr(one, kind)]

    def damage(self, version: int, kind: Literal["full", "delta"]) -> None:
        """Flip a bit in the middle of a file."""
        path = self.files(version, kind)[0]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    def bless(self, version: int) -> None:
        """Let the manifest tell the checksums that the files have now."""
        one = self.manifests[version]
        update = {
            kind: tuple(map(_described, self.files(version, kind)))  # type: ignore[arg-type]
            for kind in ("full", "delta")
        }
        self.manifests[version] = one.model_copy(update=update)

    def manifest(self, version: int) -> WeightsPublished | None:
        """As `WeightStore.manifest`."""
        return self.manifests.get(version)

    def fetch(self, published: WeightsPublished, file: WeightFile, cache: Path) -> Path:
        """As `WeightStore.fetch`."""
        path = self.folder / published.folder / file.name
        self.fetched.append(f"{published.version}/{file.name}")
        if self.on_fetch is not None:
            self.on_fetch(self.fetched[-1])
        try:
            data = path.read_bytes()
        except OSError as error:
            raise WeightsCorrupt(f"{path} cannot be read: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise WeightsCorrupt(f"{path} has another sha256 than was written")
        if not self.copies:
            return path
        copy = cache / f"{published.version}-{file.name}"
        copy.write_bytes(data)
        return copy


def model_folder(folder: Path) -> Path:
    """Config and tokenizer, and weights of its own."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 7}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"not looked at")
    (folder / "model.safetensors.index.json").write_text("{}")
    return folder


def _described(path: Path) -> WeightFile:
    data = path.read_bytes()
    return WeightFile(name=path.name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
