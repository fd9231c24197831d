"""Answers to the page's questions, as JSON values. Each takes a run and the address's words."""

import time
from collections.abc import Callable, Mapping
from threading import Lock, Thread
from typing import Any

from infra.observe.page.charts import chart_columns
from infra.observe.page.facts import Group, Inside, Row, Step
from infra.observe.page.query import BadQuery, number, page_of, reads_bodies, select
from infra.observe.page.rollout import members, rollout_values, spread
from infra.observe.page.runs import Run, Runs
from infra.observe.page.search import Search

BATCH = 64
"""Bodies that the thread reads before others may ask."""

FIRST_S = 0.5
"""What a page asks for at first is answered before that thread begins."""

WITHOUT_INDEX = frozenset({"stamp", "charts"})
"""Questions that the journal need not be read for."""

Query = Mapping[str, str]


class NotFound(Exception):
    """There is no such run, rollout or group; one line."""


class Answers:
    """Everything that can be asked. Methods may be called from any thread."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._searches: dict[str, Search] = {}
        self._readers: dict[str, Thread] = {}
        self._lock = Lock()

    def answer(self, what: str, query: Query) -> Any:
        """The JSON value for `/api/<what>?<query>`.

        Raises:
            NotFound, BadQuery: In words for people.
        """
        if what == "runs":
            return {"single": self._runs.single, "runs": [run.glance() for run in self._runs.all()]}
        ask: Callable[[Run, Query], Any] | None = {
            "stamp": lambda run, query: {"stamp": run.stamp()},
            "overview": self._overview,
            "charts": lambda run, query: chart_columns(run),
            "steps": self._steps,
            "groups": self._groups,
            "rollouts": self._rollouts,
            "rollout": self._rollout,
        }.get(what)
        if ask is None:
            raise NotFound(f"no such question: {what[:40]!r}")
        run = self._runs.get(query.get("run", ""))
        if run is None:
            raise NotFound(f"no run {query.get('run', '')[:80]!r} here")
        if what not in WITHOUT_INDEX:
            run.index.update()
            self._read_on(run)
        return ask(run, query)

    def _read_on(self, run: Run) -> None:
        """Let a thread read bodies that were not read yet."""
        with self._lock:
            reader = self._readers.get(run.name)
            if run.index.num_known < len(run.index.rows) and not (reader and reader.is_alive()):
                reader = Thread(target=_read_all, args=(run,), name=f"bodies-{run.name}")
                reader.daemon = True
                self._readers[run.name] = reader
                reader.start()

    def _overview(self, run: Run, query: Query) -> Any:
        index = run.index
        with index.lock:
            ends: dict[str, int] = {}
            for group in index.groups.values():
                if group.purpose == "train":
                    ends[group.end] = ends.get(group.end, 0) + 1
            known = {
                "rollouts": sum(row.reward is not None for row in index.rows),
                "failures": sum(row.reward is None for row in index.rows),
                "groups": ends,
                "steps": len(index.steps),
                "version": index.version,
            }
        config, glance = run.config, run.glance()
        known |= {**self._reading(run), "problem": index.problem or glance["problem"]}
        return {**glance, **known, "recipe": config and {
            "model": config.model.path, "engine": config.rollout.engine,
            "group_size": config.algorithm.group_size,
            "groups_per_step": config.algorithm.groups_per_step,
            "max_staleness": config.algorithm.max_staleness,
            "max_version_lag": config.algorithm.max_version_lag,
            "advantages": config.algorithm.advantages, "on_sync": config.rollout.on_sync,
        }}  # fmt: skip

    def _steps(self, run: Run, query: Query) -> Any:
        with run.index.lock:
            steps = [run.index.steps[step] for step in sorted(run.index.steps, reverse=True)]
            offset, shown = page_of(steps, query)
            rows = [_step(step) for step in shown]
        return {"total": len(steps), "offset": offset, "rows": rows, **self._reading(run)}

    def _groups(self, run: Run, query: Query) -> Any:
        """`step=`, `end=`, `purpose=`, and `sort=newest|oldest|spread|best|worst`."""
        index = run.index
        step, end, purpose = number(query, "step"), query.get("end"), query.get("purpose")
        with index.lock:
            groups = [
                (group, spread(_rewards(run, group)))
                for group in index.groups.values()
                if (step is None or group.step == step)
                and (not end or group.end == end)
                and (not purpose or group.purpose == purpose)
            ]
            _sort_groups(groups, query.get("sort") or "newest")
            offset, shown = page_of(groups, query)
            rows = [
                {**_group(group), **numbers, "members": members(run, group)[:MAX_DOTS]}
                for group, numbers in shown
            ]
        return {"total": len(groups), "offset": offset, "rows": rows, **self._reading(run)}

    def _rollouts(self, run: Run, query: Query) -> Any:
        index = run.index
        found = self._search(run).numbers(query["q"]) if query.get("q") else None
        with index.lock:
            rows = select(index, query)
        if found is not None:
            rows = [row for row in rows if row.number in found]
        offset, shown = page_of(rows, query)
        index.fill(shown)
        return {
            "total": len(rows),
            "offset": offset,
            "rows": [_row(row, index.groups[row.group].end) for row in shown],
            "waits_for_bodies": reads_bodies(query),
            **self._reading(run),
        }

    def _rollout(self, run: Run, query: Query) -> Any:
        values = rollout_values(run, query.get("id", ""))
        if values is None:
            raise NotFound(
                f"no rollout {query.get('id', '')[:80]!r} in the journal: ids are GROUP.INDEX, "
                "as in 17.3, or eval20.5; the journal is kept since the oldest checkpoint"
            )
        return values

    def _search(self, run: Run) -> Search:
        with self._lock:
            if run.name not in self._searches:
                self._searches[run.name] = Search(run.index, run.folder.journal)
            return self._searches[run.name]

    def _reading(self, run: Run) -> dict[str, Any]:
        return {
            "known": run.index.num_known,
            "arrived": len(run.index.rows),
            "stamp": run.stamp(),
            "problem": run.index.problem,
        }


MAX_DOTS = 64
"""Members of a group that a list shows."""


def _read_all(run: Run) -> None:
    time.sleep(FIRST_S)
    while run.index.fill_next(BATCH):
        pass


def _rewards(run: Run, group: Group) -> list[float]:
    rows = (run.index.rows[number] for number in group.rows)
    return [row.reward for row in rows if row.reward is not None]


def _sort_groups(groups: list[tuple[Group, dict[str, float | None]]], sort: str) -> None:
    by = {"spread": ("std", True), "best": ("mean", True), "worst": ("mean", False)}
    if sort in by:
        name, largest_first = by[sort]
        sign = -1 if largest_first else 1
        groups.sort(key=lambda pair: (pair[1][name] is None, sign * (pair[1][name] or 0.0)))
    elif sort == "newest":
        groups.reverse()
    elif sort != "oldest":
        raise BadQuery(f"sort={sort[:40]!r}: one of newest, oldest, {', '.join(by)}")


def _step(step: Step) -> dict[str, Any]:
    ages = step.staleness
    return {
        "step": step.step, "version": step.version, "groups": len(step.groups),
        "members": step.members, "loss": step.loss, "grad_norm": step.grad_norm,
        "published": step.published, "skipped": step.skipped,
        "sha256": step.weights_sha256[:12], **spread(step.rewards),
        "staleness_max": max(ages, default=None),
        "staleness_mean": sum(ages) / len(ages) if ages else None,
    }  # fmt: skip


def _group(group: Group) -> dict[str, Any]:
    return {
        "key": group.key, "purpose": group.purpose.value, "end": group.end, "reason": group.reason,
        "step": group.step, "attempts": group.attempts, "at": group.at or None,
        "size": len(group.rows),
    }  # fmt: skip


def _row(row: Row, end: str) -> dict[str, Any]:
    more = row.inside or Inside()
    return {
        "id": row.rollout_id, "group": row.group, "purpose": row.purpose.value, "end": end,
        "reward": row.reward, "oldest": row.oldest, "newest": row.newest, "step": row.step,
        "staleness": row.staleness, "tokens": row.num_tokens, "attempt": row.attempt,
        "error": row.error, "status": more.status, "worker": more.worker,
        "interruptions": more.interruptions, "turns": more.turns, "tool_calls": more.tool_calls,
        "tool_errors": more.tool_errors, "seconds": more.seconds, "preview": more.preview,
        "problem": more.problem,
    }  # fmt: skip
