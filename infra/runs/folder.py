"""Where things lie in a run folder.

config.json, code.json     the resolved recipe, and the code's version, of the newest start
logs/attempt_<k>/          one file for each start of each role of the k-th `up`; logs/latest is a
                           link to the newest: rollout-1.log, rollout-1.2.log (started again), ...
journal/                   what arrived and what was decided (every trainer's recipe is in it, too)
checkpoints/step_<n>/      state/ to resume, hf/ for other tools
weights/                   published versions, unless weights.store is elsewhere
metrics.jsonl              steps, evaluations, end;  summary.json: what the run came to
resources.jsonl            memory over time;  fleet.json: what `up` runs right now
incarnations/, broker/     the trainers' numbers; the private broker's data
"""

from dataclasses import dataclass
from pathlib import Path

from schemas.config import RunConfig


@dataclass(frozen=True, slots=True)
class RunFolder:
    """`<run.dir>/<run.name>/`: everything a run leaves behind."""

    root: Path

    @classmethod
    def of(cls, config: RunConfig) -> "RunFolder":
        """The folder that a recipe names."""
        return cls(Path(config.run.dir).resolve() / config.run.name)

    @property
    def config(self) -> Path:
        """The resolved recipe, as JSON."""
        return self.root / "config.json"

    @property
    def code(self) -> Path:
        """Version of the code, as JSON."""
        return self.root / "code.json"

    @property
    def broker(self) -> Path:
        """Data of the private broker; its `url` file is readable by the owner alone."""
        return self.root / "broker"

    @property
    def broker_url(self) -> Path:
        """AMQP URL of the private broker, with its password."""
        return self.broker / "url"

    @property
    def monitoring(self) -> Path:
        """Address and login of the private broker's pages, to look and change nothing: JSON,
        readable by the owner alone."""
        return self.broker / "monitoring.json"

    @property
    def logs(self) -> Path:
        """A folder for each `up`: `attempt_<k>`."""
        return self.root / "logs"

    @property
    def latest_logs(self) -> Path:
        """Of the newest `up`; does not exist before the first."""
        return self.logs / "latest"

    def logs_of(self, name: str) -> list[Path]:
        """What a role's process, as in `rollout-1`, said in the newest `up`: oldest start first."""
        again = self.latest_logs.glob(f"{name}.*.log")
        numbered = sorted((int(path.name.split(".")[-2]), path) for path in again)
        first = self.latest_logs / f"{name}.log"
        return [*([first] if first.exists() else []), *(path for _, path in numbered)]

    @property
    def journal(self) -> Path:
        """The trainer's journal segments."""
        return self.root / "journal"

    @property
    def incarnations(self) -> Path:
        """One empty file per trainer incarnation, and the lock that guards their numbers."""
        return self.root / "incarnations"

    @property
    def checkpoints(self) -> Path:
        """`step_<n>/` folders: `state/` to resume, `hf/` for other tools."""
        return self.root / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One JSON object per step or evaluation."""
        return self.root / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """What the run came to."""
        return self.root / "summary.json"

    @property
    def wishes(self) -> Path:
        """What operators wanted last (`run.py control`), for a trainer that comes back."""
        return self.root / "wishes.json"

    @property
    def fleet(self) -> Path:
        """Name -> process id of what `up` runs, as JSON; removed when it ends in good order."""
        return self.root / "fleet.json"

    @property
    def resources(self) -> Path:
        """Memory of every process over time, one JSON object per line."""
        return self.root / "resources.jsonl"

    def weights(self, config: RunConfig) -> str:
        """Where the weight store is: a folder, or a URL."""
        store = config.weights.store
        if "://" in store:
            return store
        return str(Path(store).resolve() if store else self.root / "weights")
