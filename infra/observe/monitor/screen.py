"""The picture as lines of a terminal: what is wrong first, then the tables, as much as fits."""

import textwrap
from collections import Counter

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from infra.observe.monitor.clean import clean, human_count, human_seconds, sparkline
from infra.observe.monitor.diagnosis.finding import Finding, Severity
from infra.observe.monitor.picture import Picture
from infra.observe.monitor.tables import queue_rows, queue_table, worker_table

_MARKS = {
    Severity.PROBLEM: ("✖", "bold red"),
    Severity.WARNING: ("▲", "bold yellow"),
    Severity.NOTICE: ("·", "cyan"),
}
_LABEL = 12
_FEWEST_WORKERS = 4


def screen(picture: Picture, *, width: int, height: int | None = None) -> Group:
    """Everything, or what `height` lines hold.

    Args:
        width: Columns.
        height: Lines; None: as many as it takes.
    """
    roomy = height is None or height >= 40
    head = _head(picture, width)
    foot = _foot(picture)
    queues = queue_rows(picture, all_of_them=roomy)
    workers = picture.scene.workers
    gaps, wrong, left = 3, _findings(picture, width, None), None
    if height is not None:
        fixed = len(head) + len(foot) + len(queues) + 2
        gaps = max(1, min(3, height - fixed - len(wrong) - len(workers)))
        least = min(len(workers), _FEWEST_WORKERS)
        if (over := fixed + gaps + len(wrong) + least - height) > 0:
            wrong = _findings(picture, width, max(2, len(wrong) - over))
        left = max(1, height - fixed - gaps - len(wrong))
    blank = [Text("")]
    parts: list[RenderableType] = [*head, *wrong, *blank, queue_table(queues)]
    parts += blank if gaps > 1 else []
    parts.append(worker_table(workers, width=width, room=left))
    parts += blank if gaps > 2 else []
    return Group(*parts, *foot)


def _head(picture: Picture, width: int) -> list[Text]:
    run, broker = picture.scene.run, picture.scene.broker
    first = Text(no_wrap=True, overflow="ellipsis")
    first.append(clean(run.name, max(12, width // 4)), style="bold")
    share = run.step / run.num_steps if run.num_steps else 0.0
    filled = round(10 * min(1.0, share))
    first.append(f"  step {run.step}/{run.num_steps} ")
    first.append("━" * filled, style="green")
    first.append("─" * (10 - filled), style="dim")
    first.append(f"  version {'-' if run.version < 0 else run.version}")
    if picture.rewards:
        first.append(f"  reward {picture.rewards[-1]:.3f} ")
        spark = sparkline(picture.rewards, max(0, min(40, width - cell_len(first.plain) - 12)))
        first.append(spark, style="green")
    first.append(f"  {run.wanted or 'not heard'}", style="bold" if run.wanted else "red")
    second = Text(no_wrap=True, overflow="ellipsis", style="dim")
    second.append(f"broker {broker.address} ")
    second.append("connected" if broker.connected else "not reached")
    if broker.management:
        second.append(f" · management API not reached ({broker.management}): no rates, no bytes")
    return [first, second]


def _findings(picture: Picture, width: int, room: int | None) -> list[Text]:
    """The first in full, the others as far as there is room; then which side is slowest."""
    lines: list[Text] = []
    wrong = picture.findings
    if not any(one.severity is not Severity.NOTICE for one in wrong):
        known = "the run is over" if picture.scene.over else "all well"
        well = known if picture.scene.run.wanted else "waiting for the first word of the run"
        lines.append(Text("● ", style="green").append(well, style="default"))
    for place, finding in enumerate(wrong):
        left = None if room is None else room - len(lines)
        rest = len(wrong) - place - 1
        full = _finding(finding, width)
        if left is None or len(full) + (rest if place else 0) <= left:
            lines += full
        elif left > 1 or not rest:
            lines += _finding(finding, width, short=True)
        else:
            lines.append(Text(f"  … and {rest + 1} more", style="dim"))
            break
    side = picture.bottleneck
    slowest = _labelled("slowest", f"{side.side or '-'}: {side.why}", width)
    slowest += _labelled("", side.do, width) if side.do else []
    if room is None or len(lines) + len(slowest) <= room:
        lines += slowest
    return lines


def _finding(finding: Finding, width: int, *, short: bool = False) -> list[Text]:
    mark, style = _MARKS[finding.severity]
    if short:
        line = Text(f"{mark} ", style=style, no_wrap=True, overflow="ellipsis")
        return [line.append(finding.what, style="default")]
    what = _wrapped(finding.what, width - 2)
    do = _wrapped(finding.do, width - 4)
    lines = [Text(f"{mark} " if not n else "  ", style=style).append(t) for n, t in enumerate(what)]
    return lines + [
        Text("  → " if not n else "    ", style="dim").append(t) for n, t in enumerate(do)
    ]


def _foot(picture: Picture) -> list[Text]:
    scene = picture.scene
    used, slots = scene.slots
    versions = "  ".join(
        f"{'new' if version < 0 else f'v{version}'}: {count}"
        for version, count in picture.by_version.items()
    )
    ages = "  ".join(f"{name}: {count}" for name, count in picture.by_age.items() if count)
    cuts = human_count(scene.total("rollout", "interruptions"))
    speed = human_count(scene.rate("rollout", "tokens_generated"))
    flight = f"{used}/{slots} slots · {speed} tokens/s · {cuts} interruptions · "
    flight += f"{scene.ready('cancel_queue')} snapshots wait"
    stale = "  ".join(f"{age}: {count}" for age, count in enumerate(picture.forecast) if count)
    return [
        _line("in flight", flight),
        _line("  by age", f"{ages or '-'}   by version  {versions or '-'}"),
        _line("staleness", f"{stale or '-'}   (open groups, when their turn comes)"),
        _ledger(picture),
    ]


def _ledger(picture: Picture) -> Text:
    books = picture.ledger
    if books is None:
        return _line("ledger", "not known without a trainer")
    ends = " + ".join(f"{books[n]} {n}" for n in ("trained", "filtered", "stale", "dead", "open"))
    line = _line("ledger", f"{books['issued']} = {ends}")
    if books["balanced"]:
        return line.append(" balanced", style="green")
    return line.append(" NOT BALANCED", style="bold red")


def _line(label: str, text: str) -> Text:
    line = Text(f"{label:<{_LABEL}}", style="dim", no_wrap=True, overflow="ellipsis")
    return line.append(text, style="default")


def _labelled(label: str, text: str, width: int) -> list[Text]:
    lines = _wrapped(text, max(10, width - _LABEL)) or [""]
    return [
        Text(f"{label if not n else '':<{_LABEL}}", style="dim").append(line, style="default")
        for n, line in enumerate(lines)
    ]


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of whole words."""
    return textwrap.wrap(text, max(10, width), break_on_hyphens=False)


def summary_line(picture: Picture) -> str:
    """One line, where nothing can be drawn."""
    scene, books = picture.scene, picture.ledger
    used, slots = scene.slots
    parts = [
        f"step {scene.run.step}/{scene.run.num_steps}",
        f"version {scene.run.version}",
        f"reward {picture.rewards[-1]:.3f}" if picture.rewards else "reward -",
        f"in flight {used}/{slots}",
        *(
            f"{queue.name} {queue.ready}"
            for queue in queue_rows(picture, all_of_them=False)
            if queue.ready
        ),
        f"open {books['open']}" if books else "ledger -",
        f"slowest {picture.bottleneck.side or '-'}",
        scene.run.wanted,
    ]
    if not scene.run.wanted:
        heard = Counter(worker.role for worker in scene.workers if worker.alive)
        who = ", ".join(f"{count} {role}" for role, count in sorted(heard.items())) or "nobody"
        listening = f"listening for {human_seconds(scene.listened_s)}"
        parts = ["no word from the trainer yet", listening, f"heard of this run: {who}"]
    if not scene.broker.connected:
        parts = [f"broker not reached for {human_seconds(scene.broker.since_s)}"]
    return " | ".join(parts)
