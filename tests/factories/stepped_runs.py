"""A run folder as a trainer leaves it, written without a broker: journal and checkpoints."""

from pathlib import Path
from typing import Any

from consumers.trainer.arriving.screening import screen_trajectory
from consumers.trainer.arriving.tally import Tally
from consumers.trainer.batch.groups import Group
from consumers.trainer.books.balance import Rules
from consumers.trainer.books.evaluation import Evaluations
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.learn import checkpoints
from consumers.trainer.learn.learner import Learner
from consumers.trainer.learn.lora import load_policy
from consumers.trainer.stepping import decided, stepped, take_step
from infra.roles.settings import as_json_tree
from infra.runs.folder import RunFolder
from infra.runs.journal import Journal
from infra.runs.journal_reader import Position
from infra.weights.fingerprint import entries_of, of_entries
from infra.weights.publication import casted
from schemas.config import RunConfig
from schemas.journal import Confirmed, Issued, JournalRecord, Opened, Published, Skipped
from schemas.work import Credit, Trajectory
from tests.factories.deliveries import delivery
from tests.factories.models import build
from tests.factories.world import VOCAB_SIZE, headers_of, message_of, trajectory

GROUP_SIZE = 2


def small_recipe(root: Path, **sections: dict[str, Any]) -> RunConfig:
    """One group of two per step; float32; its model is built in `root`."""
    if not (root / "model").exists():
        build(root / "model", tied=True, seed=0)
    base: dict[str, dict[str, Any]] = {
        "run": {"name": "r", "dir": str(root / "runs"), "steps": 9},
        "model": {"path": str(root / "model"), "dtype": "float32"},
        "data": {"train": [{"path": "train.jsonl"}]},
        "reward": {"functions": [{"use": "exact_match"}]},
        "algorithm": {"group_size": GROUP_SIZE, "groups_per_step": 1},
        "trainer": {"lr": 1e-3, "warmup_steps": 1},
    }
    for section, values in sections.items():
        base[section] = {**base.get(section, {}), **values}
    return RunConfig.model_validate(base)


class SteppedRun:
    """One trainer after the other: `open`, then `step`, `skip`, `checkpoint`, then `close`."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.folder = RunFolder.of(config)
        self.learner = Learner(config, load_policy(config))
        self.ledger = Ledger(Rules.of(config))
        self._journal: Journal | None = None
        self._incarnation = 0
        self.folder.root.mkdir(parents=True, exist_ok=True)

    def open(self, config: RunConfig | None = None) -> "SteppedRun":
        """The first trainer begins, or the next one goes on, perhaps under another recipe."""
        self.config = config or self.config
        tree = as_json_tree(self.config)
        self.folder.config.write_text(self.config.model_dump_json())
        end = Position("", 0)
        if self._journal is not None:
            end = self._journal.end
            self._journal.close()
            self.learner.use(self.config)
            self.ledger.follow(Rules.of(self.config))
        self._incarnation += 1
        self._journal = Journal(
            self.folder.journal,
            Opened(
                run_id="r",
                incarnation=self._incarnation,
                step=self.ledger.step,
                previous_segment=end.segment,
                previous_bytes=end.offset,
                config=dict(tree),
                code="warren of old",
            ),
        )
        if self.ledger.version < 0:
            self._publish()
        return self

    def step(self, *, finish: bool = True) -> "SteppedRun":
        """One more group arrives and is trained on; without `finish` the trainer dies meanwhile."""
        groups = self._arrive()
        step, version = self.ledger.step + 1, self.ledger.version
        self._note(decided(groups, step=step, version=version))
        if not finish:
            return self
        result = take_step(self.learner, groups, step=step, version=version)
        self._note(stepped(result))
        self._publish()
        return self

    def skip(self) -> "SteppedRun":
        """One more group arrives, and its step is given up."""
        groups = self._arrive()
        step = self.ledger.step + 1
        self._note(decided(groups, step=step, version=self.ledger.version))
        self._note(Skipped(step=step, groups=(groups[0].number,), reason="loss is nan\x1b[31m"))
        self.learner.step_done = step
        return self

    def checkpoint(self) -> "SteppedRun":
        """As the saver writes it."""
        assert self._journal is not None
        extra = {
            "run_id": "r",
            "position": list(self._journal.end),
            "ledger": self.ledger.to_json(),
            "evaluations": Evaluations().to_json(),
            "tally": Tally().to_json(),
        }
        checkpoints.save(self.folder.checkpoints, self.learner, extra, keep=9)
        return self

    async def rotate(self) -> "SteppedRun":
        """A new segment begins."""
        assert self._journal is not None
        await self._journal.rotate()
        return self

    def close(self) -> RunFolder:
        """The trainer ends."""
        assert self._journal is not None
        self._journal.close()
        return self.folder

    def _arrive(self) -> list[Group]:
        number = self.ledger.num_issued
        self._note(Issued(groups=(number,), min_version=self.ledger.version))
        self._note(Confirmed(groups=(number,)))
        credit = Credit(
            group=number, indexes=(0, 1), dataset_fingerprint="", seed=0, group_size=GROUP_SIZE
        )
        members: list[Trajectory] = []
        for index in range(GROUP_SIZE):
            scored = trajectory(credit, index, version=self.ledger.version, reward=float(index % 2))
            message = message_of(scored, headers_of(credit, index, run_id="r"), app_id="")
            screened = screen_trajectory(
                delivery("trajectories", message.envelope, message.body),
                run_id="r",
                newest_version=self.ledger.version,
                vocab_size=VOCAB_SIZE,
            )
            self._note(screened.record, message.body)
            members.append(scored)
        return [Group.of(number, members)]

    def _publish(self) -> None:
        dtype = self.config.model.dtype
        tensors = casted(self.learner.policy.published_tensors(dtype), dtype)
        self._note(
            Published(
                version=self.ledger.version + 1,
                step=self.ledger.step,
                fingerprint=of_entries(entries_of(tensors)),
            )
        )

    def _note(self, record: JournalRecord, body: bytes = b"") -> None:
        assert self._journal is not None
        position = self._journal.append(record, body)
        self.ledger.apply(record, position)
