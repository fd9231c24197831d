"""Run folders as a trainer leaves them, without one: journal, metrics, recipe and tokenizer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from infra.runs.folder import RunFolder
from infra.runs.journal import Journal
from infra.runs.metrics import MetricsFile
from schemas.arrays import to_runs
from schemas.chat import ChatMessage, FunctionCall, Speaker, ToolCall
from schemas.config import RunConfig
from schemas.headers import Purpose, rollout_id_of
from schemas.journal import (
    Arrived,
    Batch,
    Closed,
    Evaluated,
    GroupsClosed,
    Issued,
    Opened,
    Published,
    Stepped,
)
from schemas.tokens import Tokens
from schemas.work import (
    Credit,
    Failure,
    Interruption,
    Progress,
    RewardData,
    Rollout,
    RolloutStatus,
    Timings,
    ToolResult,
    Trajectory,
    Turn,
    TurnKind,
)
from tests.factories.rollouts import chatml_folder
from tests.factories.world import failure, headers_of, message_of

GROUP_SIZE = 4
SPEAKERS = {
    TurnKind.PROMPT: Speaker.USER,
    TurnKind.USER: Speaker.USER,
    TurnKind.ASSISTANT: Speaker.ASSISTANT,
    TurnKind.TOOL: Speaker.TOOL,
}
Said = Sequence[tuple[TurnKind, str]]


class WrittenRun:
    """A run whose journal and metrics grow by calls, and can be read at once."""

    def __init__(self, root: Path, *, name: str = "written") -> None:
        self.root = root / name
        self.folder = RunFolder(self.root)
        self.tokenizer_folder = chatml_folder(self.folder.checkpoints / "step_1" / "hf")
        self._tokenizer = Tokenizer.from_file(str(self.tokenizer_folder / "tokenizer.json"))
        config = RunConfig.model_validate(
            {
                "run": {"name": name, "dir": str(root), "steps": 100},
                "model": {"path": str(root / "no-model")},
                "data": {"train": [{"path": "train.jsonl"}]},
                "reward": {"functions": [{"use": "exact_match"}]},
                "algorithm": {"group_size": GROUP_SIZE, "groups_per_step": 2},
                "trainer": {"lr": 1e-3},
            }
        )
        self.folder.config.write_text(config.model_dump_json(), encoding="utf-8")
        self.journal = Journal(self.folder.journal, Opened(run_id="r", incarnation=1, step=0))
        self.journal.append(Published(version=0, step=0, fingerprint="f"))
        self.metrics = MetricsFile(self.folder.metrics)
        self.version = 0
        self._sampled: dict[str, int] = {}

    def close(self) -> None:
        self.journal.close()

    def trajectory(
        self,
        group: int,
        index: int,
        said: Said,
        *,
        reward: float = 0.0,
        purpose: Purpose = Purpose.TRAIN,
        versions: Sequence[int] = (),
        cuts: Mapping[int, Interruption] | None = None,
        results: Sequence[tuple[str, str, str, bool]] = (),
        status: RolloutStatus = RolloutStatus.COMPLETED,
    ) -> Trajectory:
        """What was said, in turns.

        Args:
            versions: Of equal parts of the sampled tokens; the current version when empty.
            cuts: Position among the sampled tokens -> the cut there.
            results: `(tool, arguments, result, ok)` of calls of the first assistant turn.
        """
        rollout_id = rollout_id_of(purpose, group, index)
        calls = tuple(
            ToolCall(
                id=f"{rollout_id}:0:{place}",
                function=FunctionCall(name=name, arguments=arguments),
            )
            for place, (name, arguments, _, _) in enumerate(results)
        )
        progress = self._progress(said, versions or [self.version], cuts or {}, calls, results)
        rollout = Rollout(
            rollout_id=rollout_id, group=group, index=index, purpose=purpose, row=group,
            status=status, finish_reason="stop" if status == "completed" else "length",
            worker=f"rollout-{index % 2 + 1}", agent="tool", prompt_hash="0" * 64,
            reward_data=RewardData(ground_truth="128"), progress=progress,
        )  # fmt: skip
        return Trajectory(
            reward=reward, rewards={"exact": reward, "brief": 0.5}, reward_s=0.01, rollout=rollout
        )

    def _progress(
        self,
        said: Said,
        versions: Sequence[int],
        cuts: Mapping[int, Interruption],
        calls: tuple[ToolCall, ...],
        results: Sequence[tuple[str, str, str, bool]],
    ) -> Progress:
        ids: list[int] = []
        mask: list[int] = []
        turns, messages = [], []
        for kind, text in said:
            encoded = self._tokenizer.encode(text, add_special_tokens=False).ids
            finish = "stop" if kind is TurnKind.ASSISTANT else None
            turns.append(
                Turn(kind=kind, start=len(ids), stop=len(ids) + len(encoded), finish_reason=finish)
            )
            first = kind is TurnKind.ASSISTANT and all(m.role != "assistant" for m in messages)
            messages.append(
                ChatMessage(role=SPEAKERS[kind], content=text, tool_calls=calls if first else ())
            )
            ids += encoded
            mask += [int(kind is TurnKind.ASSISTANT)] * len(encoded)
        sampled = [at for at, one in enumerate(mask) if one]
        by_token = [-1] * len(ids)
        logprobs = np.zeros(len(ids), dtype=np.float32)
        for place, at in enumerate(sampled):
            by_token[at] = versions[place * len(versions) // len(sampled)]
            logprobs[at] = -0.05 if place % 5 else -2.5
        return Progress(
            num_prompt_tokens=turns[0].stop,
            interruptions=tuple(
                cut.model_copy(update={"at_token": sampled[place]}) for place, cut in cuts.items()
            ),
            timings=Timings(generating_s=1.5, tools_s=0.25, waiting_s=0.1),
            tool_results=tuple(
                ToolResult(call=call, content=content, ok=ok, duration_s=0.25)
                for call, (_, _, content, ok) in zip(calls, results, strict=True)
            ),
            turns=tuple(turns),
            messages=tuple(messages),
            tokens=Tokens(
                mask=to_runs(mask),
                versions=to_runs(by_token),
                token_ids=np.array(ids, dtype=np.int32),
                logprobs=logprobs,
            ),
        )

    def issue(self, *groups: int, purpose: Purpose = Purpose.TRAIN) -> None:
        self.journal.append(
            Issued(groups=groups, min_version=self.version, purpose=purpose, at=1e9)
        )

    def arrive(self, report: Trajectory | Failure, *, attempt: int = 0) -> None:
        """A trajectory or a failure, as it was acknowledged."""
        of = report.rollout if isinstance(report, Trajectory) else report
        credit = Credit(
            group=of.group, purpose=of.purpose, indexes=(of.index,), attempt=attempt,
            dataset_fingerprint="", seed=0, group_size=GROUP_SIZE,
        )  # fmt: skip
        message = message_of(report, headers_of(credit, of.index, run_id="r"), app_id="")
        known: dict[str, Any] = {}
        if isinstance(report, Trajectory):
            tokens = report.rollout.progress.tokens
            self._sampled[of.rollout_id] = tokens.num_sampled
            known = {
                "reward": report.reward, "oldest_version": tokens.oldest_version,
                "newest_version": tokens.newest_version, "num_tokens": len(tokens),
            }  # fmt: skip
        else:
            known = {"error": report.error}
        record = Arrived(
            type=message.envelope.type, message_id=message.envelope.message_id,
            rollout_id=of.rollout_id, group=of.group, index=of.index, attempt=attempt,
            purpose=of.purpose, content_encoding=message.envelope.content_encoding,
            headers=message.envelope.headers, **known,
        )  # fmt: skip
        self.journal.append(record, message.body)

    def fail(self, group: int, index: int, error: str) -> None:
        credit = Credit(
            group=group, indexes=(index,), dataset_fingerprint="", seed=0, group_size=GROUP_SIZE
        )
        self.arrive(failure(credit, index, error=error))

    def step(self, number: int, groups: Sequence[int], members: Sequence[str]) -> None:
        """Decided, taken, published, and told in the metrics file."""
        self.journal.append(
            Batch(
                step=number, version=self.version, groups=tuple(groups), members=tuple(members),
                closed=tuple(Closed(group=group, end="trained") for group in groups),
                releases=len(groups),
            )
        )  # fmt: skip
        counts = [(one, self._sampled[one]) for one in members]
        stepped = Stepped(
            step=number, loss=0.5 / number, grad_norm=1.0, weights_sha256=f"{number:064x}",
            logprobs=tuple(counts),
        )  # fmt: skip
        trained = np.arange(sum(count for _, count in counts)) % 20 / -10.0
        self.journal.append(stepped, trained.astype("<f2").tobytes())
        self.version += 1
        self.journal.append(Published(version=self.version, step=number, fingerprint="f"))
        self.metrics.append(
            "step",
            {
                "step": number, "version": self.version - 1, "arrived/reward": 0.1 * number,
                "reward/mean": 0.5, "train/loss": 0.5 / number, "train/kl": 1e-3 * number,
                "staleness/mean": 0.5, "staleness/max": 1, "groups/trained": len(groups),
                "groups/filtered": 1, "groups/open": 2, "time/wait_s": 3.0, "time/train_s": 1.0,
                "rewards/exact": 0.1 * number,
            },
        )  # fmt: skip

    def close_group(self, group: int, end: Any, reason: str) -> None:
        self.journal.append(GroupsClosed(closed=(Closed(group=group, end=end, reason=reason),)))

    def evaluated(self, reward: float) -> None:
        self.journal.append(
            Evaluated(version=self.version, num_scored=2, num_asked=2, reward=reward)
        )
        self.metrics.append(
            "eval", {"version": self.version, "step": self.version, "eval/reward": reward}
        )


HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    '</textarea></pre></span><iframe srcdoc="<script>top.hacked = 3</script>"></iframe>'
    "<svg onload=window.hacked=4> javascript:hacked() {{7*7}} ${8*8} \u202eevil\u0000\u001b[31m"
)
"""What a model may say that wants to be executed, or to hide."""


def small_run(root: Path, *, name: str = "written") -> WrittenRun:
    """Two steps, a filtered group, a failed member, an evaluation, a cut rollout with tools, and
    one whose text is HTML and script."""
    run = WrittenRun(root, name=name)
    question, answer = (TurnKind.PROMPT, "what is 40+88?"), (TurnKind.ASSISTANT, "the sum is 128")
    run.issue(0, 1, 2, 3)
    for step, groups in ((1, (0, 1)), (2, (2, 3))):
        members = []
        for group in groups:
            for index in range(GROUP_SIZE):
                reward = float(index % 2) if group else index / 4
                made = run.trajectory(group, index, [question, answer], reward=reward)
                if (group, index) == (2, 1):
                    made = _with_cuts_and_tools(run)
                if (group, index) == (3, 0):
                    made = run.trajectory(3, 0, [question, (TurnKind.ASSISTANT, HOSTILE)])
                run.arrive(made)
                members.append(made.rollout.rollout_id)
        run.step(step, groups, members)
    run.issue(4, 5)
    for index in range(GROUP_SIZE):
        run.arrive(run.trajectory(4, index, [question, answer], status=RolloutStatus.TRUNCATED))
    run.close_group(4, "filtered", "all rewards equal 0")
    run.fail(5, 0, "ZeroDivisionError: <b>division</b> by zero")
    run.issue(2, purpose=Purpose.EVAL)
    for index in range(2):
        made = run.trajectory(2, index, [question, answer], reward=1.0, purpose=Purpose.EVAL)
        run.arrive(made)
    run.evaluated(1.0)
    return run


def _with_cuts_and_tools(run: WrittenRun) -> Trajectory:
    said = [
        (TurnKind.PROMPT, "what is 40+88?"),
        (TurnKind.ASSISTANT, "I ask the tool. <tool_call>add 40 88</tool_call>"),
        (TurnKind.TOOL, "<tool_response>\n128\n</tool_response>"),
        (TurnKind.ASSISTANT, "the tool says 128, so the sum is 128"),
    ]
    cuts = {
        10: Interruption(at_token=0, version=0, worker="rollout-1", reason="sync"),
        24: Interruption(at_token=0, version=1, worker="rollout-2", reason="leave"),
    }
    results = [
        ("add", '{"a": 40, "b": 88}', "128", True),
        ("look_up", '{"what": "<i>"}', "Error: no such page", False),
    ]
    return run.trajectory(
        2, 1, said, reward=1.0, versions=[0, 0, 1, 1, 1], cuts=cuts, results=results
    )


NEEDLE = "a needle in a haystack"


def large_run(root: Path, num_rollouts: int, *, name: str = "large") -> Path:
    """A run of so many rollouts, every other one cut, the one in the middle with `NEEDLE`."""
    run = WrittenRun(root, name=name)
    question = (TurnKind.PROMPT, "what is 40+88? " * 8)
    cut = Interruption(at_token=0, version=0, worker="rollout-1", reason="sync")
    kinds = [
        run.trajectory(
            0,
            index,
            [question, (TurnKind.ASSISTANT, "the sum says user " * (2 + length))],
            cuts={3: cut} if index % 2 else {},
        ).rollout
        for length in range(6)
        for index in range(GROUP_SIZE)
    ]
    rare = run.trajectory(0, 0, [question, (TurnKind.ASSISTANT, NEEDLE)]).rollout
    for group in range(num_rollouts // GROUP_SIZE):
        for index in range(GROUP_SIZE):
            kind = kinds[group % 6 * GROUP_SIZE + index]
            if group == num_rollouts // GROUP_SIZE // 2 and index == 0:
                kind = rare
            rollout_id = rollout_id_of(Purpose.TRAIN, group, index)
            of = kind.model_copy(update={"rollout_id": rollout_id, "group": group, "index": index})
            run.arrive(Trajectory(reward=(group * 7 + index * 3) % 10 / 10, rollout=of))
        if group % 10 == 9:
            groups = range(group - 9, group + 1)
            members = [f"{one}.{index}" for one in groups for index in range(GROUP_SIZE)]
            run.step(group // 10 + 1, groups, members)
    run.close()
    return run.root
