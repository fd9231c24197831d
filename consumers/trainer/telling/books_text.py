"""The books of a run as one JSON object, and that as text for a terminal. Pure."""

from dataclasses import asdict
from typing import Any

from consumers.trainer.books.group import MemberState, OpenGroup
from consumers.trainer.telling.history import History

MAX_SHOWN = 40
"""Open groups and reasons printed at most; `--json` has all."""
_ENDS = ("issued", "open", "trained", "filtered", "stale", "dead")


def to_json(history: History, *, now: float) -> dict[str, Any]:
    """Everything, with stable names.

    Args:
        now: Seconds since 1970, to tell for how long members are out.
    """
    ledger, evaluation = history.ledger, history.evaluations.open
    books = asdict(ledger.books())
    accounted = sum(books[name] for name in _ENDS if name != "issued")
    return {
        "run_id": history.run_id,
        "incarnation": history.incarnation,
        "journal_written_s": round(history.written_s, 3),
        "step": ledger.step,
        "stepped": history.stepped,
        "num_steps": history.num_steps,
        "version": ledger.version,
        **{name: books[name] for name in _ENDS},
        "balanced": books["balanced"],
        "difference": books["issued"] - accounted,
        "members": {
            **ledger.totals.counts(),
            "late_evaluations": history.evaluations.num_late,
            "asked_by_attempt": {str(k): n for k, n in sorted(ledger.totals.asked.items())},
        },
        "reasons": [
            {"end": end, "reason": reason, "groups": count}
            for (end, reason), count in ledger.totals.reasons.most_common()
        ],
        "open_groups": [
            _group(group, now) for _, group in sorted(ledger.groups.items(), key=lambda g: g[0])
        ],
        "evaluation": None
        if evaluation is None
        else {
            "version": evaluation.version,
            "attempt": evaluation.attempt,
            "asked": evaluation.num_asked,
            "scored": len(evaluation.rewards),
            "failed": len(evaluation.failed),
            "pending": list(evaluation.pending),
        },
    }


def to_text(books: dict[str, Any], *, name: str) -> str:
    """What `to_json` says, for people."""
    lines = [
        f"run {name} ({books['run_id']}) · step {books['stepped']}/{books['num_steps']} · "
        f"v{books['version']} · trainer incarnation {books['incarnation']}, journal written "
        f"{_ago(books['journal_written_s'])} ago",
        "",
        "groups     " + "   ".join(f"{end} {books[end]}" for end in _ENDS),
        f"           {_balance(books)}",
    ]
    members = books["members"]
    attempts = ", ".join(f"attempt {k}: {n}" for k, n in members["asked_by_attempt"].items())
    lines += [
        f"members    asked for: {attempts or 'none'}",
        f"           failed {members['failed']}   replaced {members['replaced']}   "
        f"lost and asked again {members['reissued']}   late {members['late']}   "
        f"requeued {members['requeued']}",
    ]
    if (evaluation := books["evaluation"]) is not None:
        back = evaluation["scored"] + evaluation["failed"]
        lines.append(
            f"evaluation v{evaluation['version']}: {back}/{evaluation['asked']} back, "
            f"attempt {evaluation['attempt']}"
        )
    lines += _reasons(books["reasons"])
    lines += _open_groups(books["open_groups"])
    return "\n".join(lines) + "\n"


def _group(group: OpenGroup, now: float) -> dict[str, Any]:
    pending = group.indexes(MemberState.PENDING)
    failed = [index for index in pending if group.members[index].failed]
    state = "credit not confirmed" if not group.confirmed else "out" if pending else "ready"
    return {
        "group": group.number,
        "attempt": group.attempt,
        "state": "failed, to be asked for again" if failed else state,
        "out_s": round(max(0.0, now - group.issued_at), 3) if group.issued_at else None,
        "usable": len(group.indexes(MemberState.USABLE)),
        "size": len(group.members),
        "pending": pending,
        "failed": failed,
        "dead": {str(i): group.members[i].error for i in group.indexes(MemberState.DEAD)},
        "stale": group.indexes(MemberState.STALE),
    }


def _balance(books: dict[str, Any]) -> str:
    if books["balanced"]:
        return "the books balance"
    return f"THE BOOKS DO NOT BALANCE: {books['difference']:+d} groups missing"


def _reasons(reasons: list[dict[str, Any]]) -> list[str]:
    if not reasons:
        return []
    shown = [f"  {one['groups']:7d} {one['end']:<9}{one['reason']}" for one in reasons[:MAX_SHOWN]]
    return ["", "why groups were not trained", *shown, *_more(len(reasons))]


def _open_groups(groups: list[dict[str, Any]]) -> list[str]:
    if not groups:
        return []
    lines = ["", "open groups  attempt     out  usable  state"]
    for one in groups[:MAX_SHOWN]:
        out = "?" if one["out_s"] is None else _ago(one["out_s"])
        pending = " ".join(f"{one['group']}.{index}" for index in one["pending"])
        usable = f"{one['usable']}/{one['size']}"
        lines.append(
            f"  {one['group']:9d}  {one['attempt']:7d}  {out:>6}  {usable:>6}  {one['state']}"
            + (f": {pending}" if pending else "")
        )
    return [*lines, *_more(len(groups))]


def _more(count: int) -> list[str]:
    return [f"  ... and {count - MAX_SHOWN} more (--json has all)"] if count > MAX_SHOWN else []


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
