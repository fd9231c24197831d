"""Manifests that name a file which nobody reads."""

from schemas.control import WeightFile

NO_WEIGHTS = (WeightFile(name="model.safetensors", size_bytes=1, sha256="0" * 64),)
