"""The picture for machines: one JSON object with stable names."""

from dataclasses import asdict, dataclass
from typing import Any

from infra.observe.monitor.diagnosis.bottleneck import Bottleneck, bottleneck
from infra.observe.monitor.diagnosis.every import diagnose
from infra.observe.monitor.diagnosis.finding import Finding
from infra.observe.monitor.scene import Scene, histogram

AGES = ("<10 s", "<1 min", "<5 min", "<30 min", "older")
"""Names of the classes between `schemas.reports.AGE_EDGES_S`."""
LEDGER = ("issued", "trained", "filtered", "stale", "dead", "open")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A scene and what it means."""

    scene: Scene
    findings: tuple[Finding, ...]
    bottleneck: Bottleneck

    @classmethod
    def of(cls, scene: Scene) -> "Picture":
        """Look for faults and for the slowest side."""
        return cls(scene=scene, findings=diagnose(scene), bottleneck=bottleneck(scene))

    @property
    def by_version(self) -> dict[int, int]:
        """Rollouts in flight by the version of their oldest token; -1: none sampled yet."""
        workers = self.scene.of("rollout")
        return histogram([one.rollout.versions for one in workers if one.rollout is not None])

    @property
    def by_age(self) -> dict[str, int]:
        """Rollouts in flight by the time since their worker took them."""
        counts = [0] * len(AGES)
        for one in self.scene.of("rollout"):
            for place, count in enumerate(one.rollout.ages if one.rollout is not None else ()):
                counts[place] += count
        return dict(zip(AGES, counts, strict=True))

    @property
    def forecast(self) -> tuple[int, ...]:
        """Open groups by the staleness that they will have when they are trained."""
        trainer = self.scene.trainer
        return trainer.trainer.forecast if trainer and trainer.trainer else ()

    @property
    def rewards(self) -> tuple[float, ...]:
        """Mean reward of the newest steps, oldest first."""
        trainer = self.scene.trainer
        return trainer.trainer.rewards if trainer and trainer.trainer else ()

    @property
    def ledger(self) -> dict[str, int | bool] | None:
        """The books; None without a trainer."""
        trainer = self.scene.trainer
        if trainer is None or "issued" not in trainer.counters:
            return None
        counts = {name: int(trainer.counters.get(name, 0)) for name in LEDGER}
        return {**counts, "balanced": bool(trainer.counters.get("balanced", 0))}

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        scene = self.scene
        reports = [one.rollout for one in scene.of("rollout") if one.rollout is not None]
        return {
            "run": asdict(scene.run),
            "broker": asdict(scene.broker),
            "queues": [asdict(queue) for queue in scene.queues],
            "workers": [_worker(worker) for worker in scene.workers],
            "rollouts": {
                "in_flight": scene.slots[0],
                "slots": scene.slots[1],
                "by_version": {str(version): n for version, n in self.by_version.items()},
                "by_age": self.by_age,
                "generating": sum(one.generating for one in reports),
                "in_tools": sum(one.in_tools for one in reports),
                "interruptions": int(scene.total("rollout", "interruptions")),
                "snapshots_waiting": scene.ready("cancel_queue"),
                "tokens_per_s": round(scene.rate("rollout", "tokens_generated"), 1),
            },
            "staleness_forecast": list(self.forecast),
            "ledger": self.ledger,
            "rewards": list(self.rewards),
            "bottleneck": asdict(self.bottleneck),
            "findings": [asdict(finding) for finding in self.findings],
            "listened_s": round(scene.listened_s, 1),
        }


def _worker(worker: Any) -> dict[str, Any]:
    """Reports are models: what else there is of a worker is plain."""
    names = (
        "role",
        "name",
        "host",
        "pid",
        "state",
        "waiting_for",
        "version",
        "slots",
        "slots_used",
    )
    reports = {"rollout": worker.rollout, "reward": worker.reward, "trainer": worker.trainer}
    return {
        **{name: getattr(worker, name) for name in names},
        "engine": worker.rollout.engine if worker.rollout is not None else "",
        "heard_s": round(worker.heard_s, 1),
        "waiting_s": round(worker.waiting_s, 1),
        "refuses": worker.refuses,
        "error": worker.error,
        "before": worker.before,
        "counters": worker.counters,
        "report": next(
            (r.model_dump(mode="json") for r in reports.values() if r is not None), None
        ),
    }
