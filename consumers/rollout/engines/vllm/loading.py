"""Weights into vLLM's workers, and the fingerprint of what all of them hold together.

learn -> what the workers hold under which names, proved: vLLM's own loader put there what the
         model folder has
check -> every worker looks at the files; nothing is touched
load  -> every worker copies what may differ from what it holds, and measures that again
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from consumers.rollout.engines.base import EngineFailed, WeightsRefused
from consumers.rollout.engines.layout import check_layout
from infra.weights.fingerprint import of_entries
from infra.weights.prepared import PreparedWeights

CallWorkers = Callable[..., Awaitable[list[Any]]]
"""Method name, `args` -> the answer of each worker."""

_Slice = tuple[str, str, Sequence[int], int, int, int]


class Loading:
    """What the workers of one engine hold.

    Args:
        call: Calls a method of every worker between two steps.
    """

    def __init__(self, call: CallWorkers) -> None:
        self._call = call
        self._layout: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._entries: dict[str, str] = {}

    async def learn(self, folder: Path) -> None:
        """Learn names and shapes of what vLLM loaded.

        Args:
            folder: Whose weights it loaded.

        Raises:
            EngineFailed: It holds something else than the folder under these names.
        """
        self._layout = joined(await self._call("warren_layout"))
        paths = [str(path) for path in safetensors_in(folder)]
        answers = await self._call("warren_differing", args=(paths,))
        if wrong := sorted({name for answer in answers for name in answer}):
            raise EngineFailed(
                f"vLLM holds {', '.join(wrong[:3])} otherwise than {folder}, in {len(wrong)} of "
                f"{len(self._layout)} tensors: they could not be replaced in place",
                hint="use rollout.engine = 'transformers' for this model, or leave out options "
                "that change how vLLM keeps weights",
            )

    async def check(self, weights: PreparedWeights) -> None:
        """Look whether weights can be loaded.

        Raises:
            WeightsRefused: They do not fit, or their files cannot be read.
        """
        check_layout(self._layout, weights)
        paths = [str(path) for path in files_of(weights)]
        cast = not weights.files
        for answer in await self._call(
            "warren_check", args=(paths, self._layout, self._names(weights), cast)
        ):
            if answer:
                raise WeightsRefused(f"version {weights.version}: {answer}")

    async def load(self, weights: PreparedWeights) -> str:
        """Load weights that were checked; returns the fingerprint, measured.

        Raises:
            EngineFailed: The workers hold something else now.
        """
        names = self._names(weights)
        kept = {} if names is None else self._entries
        self._entries = {}
        paths = [str(path) for path in files_of(weights)]
        answers = await self._worked(f"version {weights.version}", "warren_load", (paths, names))
        wrong = {name for answer in answers for name in answer["differing"]}
        measured: dict[str, str] = {}
        for answer in answers:
            for name, entry in answer["entries"].items():
                if measured.setdefault(name, entry) != entry:
                    wrong.add(name)
        if wrong:
            raise EngineFailed(
                f"after loading version {weights.version} vLLM's workers do not hold its "
                f"{', '.join(sorted(wrong)[:3])}"
            )
        entries = kept | measured
        if (fingerprint := of_entries(entries)) != weights.fingerprint:
            raise EngineFailed(
                f"holds fingerprint {fingerprint} after loading version {weights.version}, "
                f"which has {weights.fingerprint}"
            )
        self._entries = entries
        return fingerprint

    async def _worked(self, what: str, method: str, args: tuple[Any, ...]) -> list[Any]:
        """Call what changes the workers' weights."""
        try:
            return await self._call(method, args=args)
        except Exception as error:  # the boundary: vLLM raises whatever its workers met
            raise EngineFailed(
                f"{what} was loaded in part: {type(error).__name__}: {error}"
            ) from error

    def _names(self, weights: PreparedWeights) -> list[str] | None:
        """Tensors that have to be copied; None: all."""
        if weights.changed is None or not self._entries:
            return None
        if weights.base_fingerprint != of_entries(self._entries):
            return None
        return sorted(weights.changed & self._layout.keys())


def files_of(weights: PreparedWeights) -> Sequence[Path]:
    """Of a version, or of the model folder that it starts from."""
    return weights.files or safetensors_in(weights.model_folder)


def safetensors_in(folder: Path) -> list[Path]:
    """The files of a model folder that hold its weights."""
    return sorted(folder.glob("*.safetensors"))


def joined(answers: Iterable[Iterable[_Slice]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape by name, from the slices that the workers hold.

    Raises:
        EngineFailed: They contradict each other, or leave something of a tensor out.
    """
    layout: dict[str, tuple[str, tuple[int, ...]]] = {}
    slices: dict[str, list[tuple[int, int]]] = {}
    ends: dict[str, int] = {}
    for answer in answers:
        for name, dtype, shape, dim, start, stop in answer:
            described = (dtype, tuple(shape))
            if layout.setdefault(name, described) != described:
                raise EngineFailed(
                    f"vLLM's workers disagree on {name}: {described}, {layout[name]}"
                )
            ends[name] = shape[dim] if shape else 1
            slices.setdefault(name, []).append((start, stop))
    for name, held in slices.items():
        reached = 0
        for start, stop in sorted(held):
            if start > reached:
                break
            reached = max(reached, stop)
        if reached != ends[name]:
            raise EngineFailed(
                f"vLLM's workers hold {name} up to {reached} of {ends[name]}, the rest is nowhere"
            )
    return layout
