"""Rows of `replay step` for people and for machines. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from consumers.trainer.replay.again import Again, Row
from consumers.trainer.replay.compare import TOLERANCE
from consumers.trainer.replay.what_if import Changes
from infra.runs.code_version import code_version
from schemas.journal import RanOn, Skipped

HEADER = (
    f"{'step':>6} {'v':>5} {'groups':>7} {'members':>8} {'tokens':>9} {'loss':>15} "
    f"{'grad norm':>15}  {'weights':<14}"
)
MAX_SHOWN = 16
"""Members named at most; `--json` has all."""
QUANTITIES = {
    "train/loss": "loss",
    "train/grad_norm": "gradient norm",
    "train/lr": "learning rate",
    "train/clip_frac": "clipped tokens, share",
    "train/clip_frac_low": "  below 1 - clip_low",
    "train/clip_frac_high": "  above 1 + clip_high",
    "train/clip_frac_dual": "  above dual_clip",
    "train/kl": "KL to the sampling policy (k1)",
    "train/kl_k3": "KL to the sampling policy (k3)",
    "train/ratio_mean": "ratio, mean",
    "train/ratio_max": "ratio, largest",
    "train/ess": "effective sample size, share",
    "train/entropy": "entropy",
}
"""Metric -> what a what-if calls it."""


def title(again: Again, *, name: str) -> str:
    """What is replayed, and on what."""
    plan = again.plan
    which = f"step {plan.first}" if plan.first == plan.last else f"steps {plan.first}-{plan.last}"
    what = "" if again.changes is None else f", with {', '.join(again.changes.overrides)}"
    return f"run {name} · {which} from {plan.base}{what}\n"


def machine(here: RanOn) -> str:
    """One line."""
    threads = "thread" if here.num_threads == 1 else "threads"
    return f"on {here.device}, {here.num_threads} {threads}, torch {here.torch}, {here.cpu}\n"


def row_text(row: Row, *, alone: bool) -> str:
    """One line of the table; below it what differs, or of a step asked for alone, who was in it."""
    batch, recorded, again = row.batch, row.recorded, row.again
    head = (
        f"{batch.step:>6} {batch.version:>5} {len(batch.groups):>7} {len(batch.members):>8} "
        f"{row.num_tokens:>9,} "
    )
    verdict = row.verdict
    assert verdict is not None
    if verdict.bitwise:
        text = head + _values(again.loss, again.grad_norm, again.weights_sha256)
        text += "equal, bit for bit\n"
    elif verdict.equal:
        text = head + _values(again.loss, again.grad_norm, again.weights_sha256)
        text += "equal within the tolerance\n"
    else:
        values = _values(recorded.loss, recorded.grad_norm, recorded.weights_sha256)
        text = f"{head}{values}recorded\n"
        values = _values(again.loss, again.grad_norm, again.weights_sha256)
        text += f"{'':>{len(head)}}{values}replayed: DIFFERS, {_first(row)}\n"
    return text + (_members(row) if alone else "")


def skipped_text(skipped: Skipped) -> str:
    """Of a step that was given up."""
    return f"{skipped.step:>6} {'':>5} {len(skipped.groups):>7}  given up: {skipped.reason}\n"


def what_if_text(row: Row, metrics: Mapping[str, float], changes: Changes) -> str:
    """A step's record beside what it would have been.

    Args:
        row: The step under other terms.
        metrics: Its line in the run's metrics; may be empty.
        changes: The terms.
    """
    batch = row.batch
    lines = [
        f"step {batch.step}: {len(batch.groups)} groups, {len(batch.members)} members, "
        f"{row.num_tokens:,} tokens",
        f"  {'':<32} {'recorded':>14} {'with it':>14} {'change':>10}",
    ]
    for one in _quantities(row, metrics):
        before, now = one["recorded"], one["replayed"]
        told = "-" if before is None else f"{before:.6g}"
        change = "" if before is None else f"{now - before:+.3g}" if now != before else "same"
        lines.append(f"  {QUANTITIES[one['name']]:<32} {told:>14} {now:>14.6g} {change:>10}")
    same = row.recorded.weights_sha256 == row.again.weights_sha256
    lines.append(f"  {'weights':<32} {'the same' if same else 'others':>29}")
    return "\n".join(lines) + f"\n  with {', '.join(changes.overrides)}\n"


def summary_text(again: Again, rows: Sequence[Row]) -> str:
    """The last words."""
    lines = [f"note: {note}" for note in again.notes]
    if again.changes is not None:
        return "".join(f"{line}\n" for line in lines)
    wrong = [row for row in rows if row.verdict is not None and not row.verdict.equal]
    bitwise = sum(row.verdict is not None and row.verdict.bitwise for row in rows)
    count = f"{len(rows)} step{'s' * (len(rows) != 1)}"
    if again.unlike:
        lines.append(f"recorded on other terms: {'; '.join(again.unlike)}")
        lines.append(f"so {TOLERANCE} count as equal, and weights' hashes are not compared")
    if wrong:
        lines.append(f"{len(wrong)} of {count} DIFFER; the first is step {wrong[0].batch.step}: ")
        lines[-1] += _first(wrong[0])
        if again.codes:
            lines.append(f"recorded by {'; '.join(again.codes)}: this is {code_version()}")
        if again.unlike:
            lines.append("such differences grow with every step: nearer to a checkpoint tells more")
        elif wrong[0].recorded.ran_on is None:
            lines.append("the record does not say what it ran on: another machine, thread count?")
    elif bitwise == len(rows):
        lines.append(f"{count}: equal, bit for bit (loss, gradient norm, weights)")
    else:
        lines.append(f"{count}: equal, {bitwise} of them bit for bit, the others within tolerance")
    return "".join(f"{line}\n" for line in lines)


def to_json(
    again: Again,
    rows: Sequence[Row],
    *,
    name: str,
    metrics: Mapping[int, Mapping[str, float]],
    skipped: Sequence[Skipped],
) -> dict[str, Any]:
    """Everything, with stable names."""
    here = again.here
    return {
        "run": name,
        "run_id": again.plan.run_id,
        "base": str(again.plan.base),
        "base_step": again.plan.base.step,
        "here": None if here is None else here.model_dump(),
        "with": list(again.changes.overrides) if again.changes else [],
        "unlike": list(again.unlike),
        "tolerance": TOLERANCE if again.unlike and not again.changes else None,
        "notes": again.notes,
        "code_version": str(code_version()),
        "recorded_by": list(again.codes),
        "steps": [_row_json(row, metrics.get(row.batch.step, {})) for row in rows],
        "skipped": [one.model_dump(exclude={"record"}) for one in skipped],
        "equal": None
        if again.changes
        else all(row.verdict is not None and row.verdict.equal for row in rows),
    }


def _row_json(row: Row, metrics: Mapping[str, float]) -> dict[str, Any]:
    batch, again, verdict = row.batch, row.again, row.verdict
    told: dict[str, Any] = {
        "step": batch.step,
        "version": batch.version,
        "groups": list(batch.groups),
        "members": list(batch.members),
        "num_tokens": row.num_tokens,
        "num_sampled": row.num_sampled,
        "recorded": row.recorded.model_dump(exclude={"record", "step"}),
        "replayed": {
            "loss": again.loss,
            "grad_norm": again.grad_norm,
            "weights_sha256": again.weights_sha256,
            "ran_on": again.ran_on.model_dump(),
        },
        "seconds": round(row.seconds, 3),
    }
    if verdict is None:
        return {**told, "what_if": _quantities(row, metrics)}
    return {
        **told,
        "equal": verdict.equal,
        "bitwise": verdict.bitwise,
        "first_difference": verdict.first_difference or None,
    }


def _quantities(row: Row, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
    known = {
        **metrics,
        "train/loss": row.recorded.loss,
        "train/grad_norm": row.recorded.grad_norm,
    }
    return [
        {"name": name, "recorded": known.get(name), "replayed": row.again.metrics[name]}
        for name in QUANTITIES
        if name in row.again.metrics
    ]


def _values(loss: float, grad_norm: float, sha256: str) -> str:
    return f"{loss:>15.8g} {grad_norm:>15.8g}  {sha256[:12]:<14}"


def _first(row: Row) -> str:
    """The first differing quantity in full."""
    assert row.verdict is not None
    name = row.verdict.first_difference
    before, now = getattr(row.recorded, name), getattr(row.again, name)
    words = {"loss": "loss", "grad_norm": "gradient norm", "weights_sha256": "hash of the weights"}
    return f"{words[name]} {before!r} recorded, {now!r} replayed"


def _members(row: Row) -> str:
    shown = row.batch.members[:MAX_SHOWN]
    more = len(row.batch.members) - len(shown)
    members = " ".join(shown) + (f" ... and {more} more (--json has all)" if more else "")
    groups = " ".join(map(str, row.batch.groups))
    return f"\n  sampled tokens {row.num_sampled:,}\n  groups   {groups}\n  members  {members}\n\n"
