"""Old and new rewards for the terminal. Whatever came from outside is escaped."""

from consumers.reward.pool import short_names
from consumers.reward.rescore.rescored import REWARD, Rescored, Totals
from infra.observe.columns import columns
from infra.observe.harmless import harmless
from schemas.config import RewardSection


def one_text(rescored: Rescored, section: RewardSection) -> str:
    """One rollout: functions below each other."""
    begin = f"rollout {rescored.rollout_id} · {rescored.purpose} · {rescored.end}"
    if not rescored.new:
        return f"{harmless(begin)}\nNO SCORE: {harmless(rescored.error, limit=1000)}\n"
    weights = _weights(section)
    rows = [("", "weight", "old", "new", "change")]
    for name in rescored.names:
        old, new = rescored.old.get(name), rescored.new.get(name)
        change = f"{new - old:+g}" if old is not None and new is not None and new != old else ""
        rows.append((harmless(name), weights.get(name, ""), _number(old), _number(new), change))
    return f"{harmless(begin)}\n\n{columns(rows)}"


def totals_text(totals: Totals, section: RewardSection, *, seconds: float, brief: bool) -> str:
    """Many rollouts: means by function, groups, and the rollouts that changed most."""
    parts = [
        f"{totals.num:,} rollouts scored anew in {seconds:.1f} s, {totals.num_failed:,} without a "
        f"score\n"
    ]
    weights = _weights(section)
    rows = [("mean of", "weight", "old", "new", "changed")]
    for name in sorted(totals.columns, key=lambda one: one == REWARD):
        column = totals.columns[name]
        both = column.num_old and column.num_new
        rows.append(
            (
                harmless(name),
                weights.get(name, ""),
                _number(column.mean_old),
                _number(column.mean_new),
                f"{column.num_changed:,}" if both else "",
            )
        )
    parts += [columns(rows)] if totals.columns else []
    num_groups, old, new = totals.groups
    if num_groups:
        parts.append(
            f"{num_groups:,} groups to train on: rewards differ in {new:,}, before in {old:,}\n"
        )
    if not brief:
        parts += _named(totals)
    return "\n".join(parts)


def _named(totals: Totals) -> list[str]:
    parts = []
    if totals.most_changed:
        rows = [("changed most", "old", "new", "change")]
        rows += [
            (harmless(one.rollout_id), _number(one.old[REWARD]), _number(one.new[REWARD]),
             f"{one.change:+g}")
            for one in totals.most_changed
        ]  # fmt: skip
        parts.append(columns(rows))
    if totals.failed:
        lines = [
            f"  {harmless(one.rollout_id)}: {harmless(one.error, limit=300)}"
            for one in totals.failed
        ]
        more = totals.num_failed - len(lines)
        lines += [f"  and {more:,} more"] if more else []
        parts.append("\n".join(["NO SCORE", *lines]) + "\n")
    return parts


def _weights(section: RewardSection) -> dict[str, str]:
    names = short_names([function.use for function in section.functions])
    pairs = zip(names, section.functions, strict=True)
    return {name: f"{function.weight:g}" for name, function in pairs}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
