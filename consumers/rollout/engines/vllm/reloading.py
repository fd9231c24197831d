"""Weights into workers of vLLM that quantise them: by vLLM's own reload, all of them each time.

What is served then is other bytes than what was published, so the proof has two halves:

- the fingerprint is measured on the tensors that vLLM's loader was given, each of them by one of
  the workers: they are those that were published;
- what the workers hold afterwards is measured, too, and is a function of these: right after the
  start a reload of the model folder must leave the same bytes as vLLM's own first load of it, and
  later the same tensors must leave the same bytes again.

Not proved: what the method makes of a tensor, and what a kernel keeps outside of parameters.
"""

import logging
from pathlib import Path
from typing import Any

from consumers.rollout.engines.base import EngineFailed
from consumers.rollout.engines.vllm.loading import CallWorkers, Loading, files_of, safetensors_in
from infra.roles.errors import ConfigError
from infra.weights.fingerprint import of_entries
from infra.weights.prepared import PreparedWeights

logger = logging.getLogger(__name__)


class Reloading(Loading):
    """What the workers of an engine that quantises were given, and what they made of it.

    Args:
        call: Calls a method of every worker between two steps.
        dtype: Of the published tensors.
    """

    def __init__(self, call: CallWorkers, dtype: str) -> None:
        super().__init__(call)
        self._dtype = dtype
        self._held: dict[str, list[str]] = {}
        """Fingerprint -> digest of what each worker held after it."""

    async def learn(self, folder: Path) -> None:
        """Learn names and shapes of what vLLM loaded.

        Args:
            folder: Whose weights it loaded.

        Raises:
            ConfigError: None of its layers is quantised.
            EngineFailed: To load the folder once more does not leave the same.
        """
        if not any(await self._call("warren_quantised")):
            raise ConfigError(
                f"rollout.engine_options quantises no layer of the model in {folder}",
                hint="leave quantization out, or use a method for this kind of layers",
            )
        paths = [str(path) for path in safetensors_in(folder)]
        formats = (await self._call("warren_formats", args=(paths, self._dtype)))[0]
        self._layout = {name: (dtype, tuple(shape)) for name, dtype, shape in formats}
        first = await self._call("warren_digest")
        fingerprint, held = await self._reload(paths, f"the weights of {folder}")
        if held != first:
            raise EngineFailed(
                f"vLLM's reload of {folder} leaves other bytes than its own first load",
                hint="this quantisation cannot follow a training; leave it out, or use another",
            )
        self._held = {fingerprint: held}

    async def load(self, weights: PreparedWeights) -> str:
        """Load weights that were checked; returns the fingerprint of what vLLM's loader was given.

        Raises:
            EngineFailed: The workers hold something else now.
        """
        what = f"version {weights.version}"
        fingerprint, held = await self._reload([str(path) for path in files_of(weights)], what)
        if fingerprint != weights.fingerprint:
            raise EngineFailed(
                f"was given fingerprint {fingerprint} for {what}, which has {weights.fingerprint}"
            )
        if self._held.setdefault(fingerprint, held) != held:
            raise EngineFailed(
                f"{what} came before, and vLLM made something else of it: what it serves is not "
                "told by the weights alone"
            )
        logger.debug("%s: vLLM holds %s", what, ", ".join(held))
        return fingerprint

    async def _reload(self, paths: list[str], what: str) -> tuple[str, list[str]]:
        answers: list[dict[str, Any]] = await self._worked(
            what, "warren_reload", (paths, self._dtype)
        )
        if missing := sorted({name for answer in answers for name in answer["missing"]}):
            raise EngineFailed(
                f"{what} left {', '.join(missing[:3])} as it was, in {len(missing)} parameters",
                hint="use rollout.engine = 'transformers' for this model",
            )
        entries: dict[str, str] = {}
        for answer in answers:
            entries |= answer["entries"]
        return of_entries(entries), [answer["held"] for answer in answers]
