"""Where things lie in a run folder."""

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
    def broker(self) -> Path:
        """Data of the private broker; its `url` file is readable by the owner alone."""
        return self.root / "broker"

    @property
    def broker_url(self) -> Path:
        """AMQP URL of the private broker, with its password."""
        return self.broker / "url"

    @property
    def logs(self) -> Path:
        """One file per role."""
        return self.root / "logs"

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
