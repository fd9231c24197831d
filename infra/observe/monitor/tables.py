"""Queues and workers as tables without lines: nothing wraps, what is too long is cut."""

from collections.abc import Sequence
from functools import partial

from rich.table import Table
from rich.text import Text

from infra.amqp.topology import RECORDING
from infra.observe.monitor.clean import clean, human_bytes, human_count, human_seconds
from infra.observe.monitor.picture import Picture
from infra.observe.monitor.scene import QueueSeen, WorkerSeen

WIDE = 120
"""Columns from which there is room for hosts, engines and process ids."""
_ALWAYS = ("credits", "prompts", "cancel_queue", "rollouts", "trajectories")
_STATES = {
    "running": "green",
    "waiting": "cyan",
    "swapping": "magenta",
    "starting": "blue",
    "paused": "yellow",
    "leaving": "yellow",
    "silent": "bold red",
    "failed": "bold red",
}
_WORTH_S = 1.0
"""Shorter waits are work."""
_TROUBLED = ("failed", "silent", "leaving")


def queue_rows(picture: Picture, *, all_of_them: bool) -> list[QueueSeen]:
    """Those that a training run lives of, and of the others those with something in them."""
    queues = picture.scene.queues
    return [
        queue
        for queue in queues
        if all_of_them
        or queue.name in _ALWAYS
        or (queue.name != RECORDING.name and (queue.ready or queue.unacknowledged))
    ]


def queue_table(rows: Sequence[QueueSeen]) -> Table:
    """One line a queue."""
    table = _table()
    table.add_column("queue", min_width=12)
    for name in ("ready", "unacked", "in/s", "out/s", "bytes", "limit"):
        table.add_column(name, justify="right", min_width=7)
    table.add_column("consumers", justify="right")
    for row in rows:
        style = "" if row.ready or row.unacknowledged else "dim"
        if row.name in ("dead_letters", "failures") and row.ready:
            style = "yellow"
        table.add_row(
            row.name,
            _number(row.ready),
            _number(row.unacknowledged),
            _rate(row.in_per_s),
            _rate(row.out_per_s),
            "?" if row.bytes is None else human_bytes(row.bytes),
            row.limit or "-",
            _number(row.consumers),
            style=style,
        )
    return table


def worker_table(workers: Sequence[WorkerSeen], *, width: int, room: int | None) -> Table:
    """One line a worker, as many as there is room for: those in trouble are not left out."""
    shown, rest = chosen(workers, room)
    wide = width >= WIDE
    table = _table(expand=True)
    column = partial(table.add_column, no_wrap=True, overflow="ellipsis")
    column("worker", min_width=12, max_width=40 if wide else 16)
    column("state", min_width=8)
    column("version", justify="right")
    column("slots", justify="right", min_width=5)
    if wide:
        column("engine", max_width=16)
        column("host", max_width=24)
        column("process", justify="right")
    column("since", justify="right", min_width=6)
    column("waits for", ratio=1)
    for one in shown:
        since, what = _waits(one)
        row: list[Text | str] = [
            one.name,
            Text(one.state, style=_STATES.get(one.state, "")),
            "-" if version_of(one) < 0 else str(version_of(one)),
            f"{one.slots_used}/{one.slots}" if one.slots else "-",
        ]
        if wide:
            engine = clean(one.rollout.engine, 40) if one.rollout is not None else "-"
            row += [engine, one.host, str(one.pid)]
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row), since, what)
    if rest:
        table.add_row(*_summed(rest, wide=wide), style="dim")
    return table


def chosen(
    workers: Sequence[WorkerSeen], room: int | None
) -> tuple[list[WorkerSeen], list[WorkerSeen]]:
    """Who is shown, and who is only counted: trouble and single roles come first."""
    if room is None or len(workers) <= room:
        return list(workers), []
    roles = [one.role for one in workers]
    urgency = sorted(
        range(len(workers)),
        key=lambda place: (
            workers[place].state not in _TROUBLED,
            roles[place] != "trainer",
            roles[:place].count(roles[place]),
        ),
    )
    places = set(urgency[: max(0, room - 1)])
    shown = [one for place, one in enumerate(workers) if place in places]
    return shown, [one for place, one in enumerate(workers) if place not in places]


def version_of(one: WorkerSeen) -> int:
    """That a worker serves, or the trainer published; -1 for none."""
    if one.trainer is not None:
        return int(one.counters.get("version", -1))
    return one.version


def _summed(workers: Sequence[WorkerSeen], *, wide: bool) -> list[str]:
    """The row of those that are not shown."""
    versions = [one.version for one in workers if one.version >= 0]
    span = sorted({min(versions), max(versions)}) if versions else []
    slots = sum(one.slots for one in workers)
    row = [
        f"… {len(workers)} more",
        "",
        "-".join(map(str, span)) or "-",
        f"{sum(one.slots_used for one in workers)}/{slots}" if slots else "-",
    ]
    return [*row, *([""] * 3 if wide else []), "", _states(workers)]


def _states(workers: Sequence[WorkerSeen]) -> str:
    counts: dict[str, int] = {}
    for one in workers:
        counts[one.state] = counts.get(one.state, 0) + 1
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


def _waits(one: WorkerSeen) -> tuple[Text, Text]:
    if one.state in ("silent", "failed"):
        what = one.error or "not heard"
        return Text(human_seconds(one.heard_s), style="red"), Text(what, style="red")
    if one.waiting_for and one.waiting_s >= _WORTH_S:
        style = "" if one.state == "waiting" else "dim"
        return Text(human_seconds(one.waiting_s), style=style), Text(one.waiting_for, style=style)
    if one.reward is not None and one.reward.scoring:
        busy = f"scoring {one.reward.scoring}, {one.reward.queued} queued"
        return Text("-", style="dim"), Text(busy, style="dim")
    return Text("-", style="dim"), Text("-", style="dim")


def _table(*, expand: bool = False) -> Table:
    return Table(box=None, expand=expand, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def _number(value: int | None) -> str:
    return "?" if value is None else human_count(value)


def _rate(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"
