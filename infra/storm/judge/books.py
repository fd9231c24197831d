"""What the trainer itself says about its books: its newest checkpoint, and its last metrics line.

The checkpoint's format is decoded here by hand: two bits a group below `top`, in the order of
`CODES`, but for the numbers in `open`.
"""

import base64
import json
import zlib
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.runs.folder import RunFolder
from infra.runs.journal_reader import Position
from infra.runs.metrics import read_metrics
from infra.storm.judge.recount import Counts, Recount

CODES = ("trained", "filtered", "stale", "dead")


@dataclass(frozen=True, slots=True)
class SavedBooks:
    """The ledger in a checkpoint, and where in the journal it stood."""

    step: int
    weights_sha256: str
    position: Position
    counts: Counts
    open_groups: frozenset[int]


def newest_checkpoint(folder: RunFolder) -> Path | None:
    """The `state.json` of the checkpoint with the highest step; None without one."""
    found = {
        int(path.parents[1].name.removeprefix("step_")): path
        for path in folder.checkpoints.glob("step_*/state/state.json")
        if path.parents[1].name.removeprefix("step_").isdigit()
    }
    return found[max(found)] if found else None


def read_saved(path: Path) -> SavedBooks:
    """Decode a checkpoint's books.

    Raises:
        ValueError: It does not say what is expected.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        extra = state["extra"]
        ledger = extra["ledger"]
        open_groups = frozenset(group["number"] for group in ledger["groups"])
        ends = Counter(_ends(ledger["ends"]))
        return SavedBooks(
            step=state["step"],
            weights_sha256=state["weights_sha256"],
            position=Position(*extra["position"]),
            counts=Counts(
                issued=ledger["num_issued"],
                open=len(open_groups),
                **{code: ends[code] for code in CODES},
            ),
            open_groups=open_groups,
        )
    except (OSError, KeyError, TypeError, LookupError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def last_line(folder: RunFolder) -> Counts | None:
    """The books in the `end` line of the metrics; None when the run did not end, or went on."""
    lines = list(read_metrics(folder.metrics))
    if not lines or lines[-1]["kind"] != "end":
        return None
    names = ("issued", "open", *CODES)
    return Counts(**{name: int(lines[-1].get(f"ledger/{name}", -1)) for name in names})


def differences(found: Counts, said: Counts, who: str) -> tuple[int, list[str]]:
    """By how many groups two counts differ, and in what."""
    ours, theirs = asdict(found), asdict(said)
    off = {name: theirs[name] - ours[name] for name in ours if theirs[name] != ours[name]}
    words = [
        f"{who} says {theirs[name]} groups {name}, the journal has {ours[name]}" for name in off
    ]
    return sum(abs(value) for value in off.values()), words


def compare(recount: Recount, saved: SavedBooks) -> tuple[int, list[str]]:
    """A recount at the checkpoint's position against the checkpoint."""
    who = f"the checkpoint of step {saved.step}"
    imbalance, words = differences(recount.counts(), saved.counts, who)
    other = saved.open_groups ^ recount.groups.keys()
    if other and not imbalance:
        imbalance = len(other)
        words.append(f"{who} has other groups open: {sorted(other)}")
    stepped = recount.steps.get(saved.step)
    if stepped is not None and stepped != saved.weights_sha256:
        words.append(f"{who} holds other weights than the journal says of that step")
        imbalance += 1
    return imbalance, words


def _ends(packed: dict[str, Any]) -> list[str]:
    bits = zlib.decompress(base64.b85decode(packed["bits"]))
    open_groups = set(packed["open"])
    return [
        CODES[bits[number // 4] >> number % 4 * 2 & 3]
        for number in range(packed["top"])
        if number not in open_groups
    ]
