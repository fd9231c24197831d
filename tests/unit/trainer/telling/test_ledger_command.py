"""`run.py ledger`: what it says is what the journal says, while the run lives and afterwards."""

import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from consumers.trainer.books.balance import Books, Rules
from consumers.trainer.books.ledger import Ledger
from consumers.trainer.telling import history
from consumers.trainer.telling.books_text import to_json, to_text
from consumers.trainer.telling.command import run
from consumers.trainer.telling.history import read_history
from infra.roles.errors import ConfigError
from infra.runs import journal_reader
from infra.runs.folder import RunFolder
from infra.runs.journal import Journal
from infra.runs.journal_reader import JournalCorrupt, JournalReader
from schemas.config import RunConfig
from schemas.headers import Purpose
from schemas.journal import (
    Batch,
    Closed,
    Confirmed,
    GroupsClosed,
    Issued,
    JournalRecord,
    Late,
    Opened,
    Published,
    Stepped,
)
from tests.unit.trainer.books.ledger_runs import arrived

ROOT = Path(__file__).resolve().parents[4]
ISSUED_AT = 1_700_000_000.0
BOOKS = Books(issued=0, open=3, trained=1, filtered=0, stale=0, dead=0, balanced=False)
"""Two groups were forgotten."""


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """Groups of three, two of them needed; failed members are asked for again."""
    return RunConfig.model_validate(
        {
            "run": {"name": "told", "dir": str(tmp_path), "steps": 9},
            "model": {"path": "m"},
            "data": {"train": [{"path": "t.jsonl"}]},
            "reward": {"functions": [{"use": "exact_match"}]},
            "algorithm": {"group_size": 3, "groups_per_step": 1, "on_failure": "replace"},
            "trainer": {"lr": 1e-3},
        }
    )


def options(config: RunConfig, *, as_json: bool) -> Namespace:
    """Of `run.py ledger RECIPE`."""
    recipe = Path(config.run.dir) / "recipe.json"
    recipe.write_text(config.model_dump_json())
    return Namespace(run=str(recipe), overrides=[], json=as_json)


def records() -> list[JournalRecord]:
    """Of six groups: 0 trained, 1 filtered, 2 dead, 3 failed once, 4 ready, 5 not confirmed."""
    issued = (0, 1, 2, 3, 4)
    return [
        Published(version=0, step=0, fingerprint="f"),
        Issued(groups=issued, at=ISSUED_AT),
        Confirmed(groups=issued),
        *(arrived(0, index, reward=float(index)) for index in range(3)),
        *(arrived(1, index, reward=0.5) for index in range(3)),
        arrived(2, -1, reward=None, error="producer: no such row"),
        Issued(groups=(2,), indexes=(0, 1, 2), attempt=1, at=ISSUED_AT + 5),
        Confirmed(groups=(2,), attempt=1),
        arrived(2, -1, reward=None, attempt=1, error="producer: no such row"),
        GroupsClosed(
            closed=(
                Closed(group=1, end="filtered", reason="all rewards equal 0.5"),
                Closed(group=2, end="dead", reason="producer: no such row"),
            )
        ),
        arrived(3, 2, reward=None, error="reward: boom"),
        *(arrived(4, index, reward=float(index)) for index in range(3)),
        Late(type="Trajectory", rollout_id="1.0", group=1, index=0, purpose=Purpose.TRAIN),
        Batch(
            step=1,
            version=0,
            groups=(0,),
            members=("0.0", "0.1", "0.2"),
            closed=(Closed(group=0, end="trained"),),
            releases=1,
        ),
        Stepped(step=1, loss=0.1, grad_norm=1.0, weights_sha256="0" * 64),
        Issued(groups=(5,), at=ISSUED_AT + 50),
    ]


@pytest.fixture
def journal(config: RunConfig) -> Journal:
    """Of a trainer that lives: its file is open."""
    folder = RunFolder.of(config)
    journal = Journal(folder.journal, Opened(run_id="cafe", incarnation=1, step=0))
    for record in records():
        journal.append(record)
    return journal


def test_every_number_is_the_journals(config: RunConfig, journal: Journal) -> None:
    books = to_json(read_history(config), now=ISSUED_AT + 60)
    ends = {name: books[name] for name in ("issued", "open", "trained", "filtered", "stale")}
    assert ends == {"issued": 6, "open": 3, "trained": 1, "filtered": 1, "stale": 0}
    assert (books["dead"], books["balanced"], books["difference"]) == (1, True, 0)
    assert (books["run_id"], books["step"], books["stepped"], books["version"]) == ("cafe", 1, 1, 0)
    assert books["members"] == {
        "failed": 7,
        "replaced": 3,
        "reissued": 0,
        "late": 1,
        "requeued": 0,
        "late_evaluations": 0,
        "asked_by_attempt": {"0": 18, "1": 3},
    }
    assert {(one["end"], one["reason"], one["groups"]) for one in books["reasons"]} == {
        ("filtered", "all rewards equal 0.5", 1),
        ("dead", "producer: no such row", 1),
    }
    told = {
        one["group"]: (one["state"], one["pending"], one["usable"], one["out_s"])
        for one in books["open_groups"]
    }
    assert told == {
        3: ("failed, to be asked for again", [0, 1, 2], 0, 60.0),
        4: ("ready", [], 3, 60.0),
        5: ("credit not confirmed", [0, 1, 2], 0, 10.0),
    }


def test_the_text_has_what_people_look_for(config: RunConfig, journal: Journal) -> None:
    text = to_text(to_json(read_history(config), now=ISSUED_AT + 60), name="told")
    for part in (
        "run told (cafe) · step 1/9 · v0 · trainer incarnation 1, journal written ",
        "groups     issued 6   open 3   trained 1   filtered 1   stale 0   dead 1",
        "the books balance",
        "asked for: attempt 0: 18, attempt 1: 3",
        "failed 7   replaced 3   lost and asked again 0   late 1",
        "      1 dead     producer: no such row",
        "  failed, to be asked for again: 3.0 3.1 3.2",
        "          5        0    10 s     0/3  credit not confirmed: 5.0 5.1 5.2",
    ):
        assert part in text, text


def test_a_torn_tail_of_a_killed_trainer_is_no_hindrance(
    config: RunConfig, journal: Journal
) -> None:
    journal.close()
    (segment,) = RunFolder.of(config).journal.iterdir()
    segment.write_bytes(segment.read_bytes() + b"WJ1\n half a reco")
    assert read_history(config).ledger.num_issued == 6


async def test_behind_a_checkpoint_only_the_rest_is_needed(
    config: RunConfig, journal: Journal
) -> None:
    """Older segments are gone with their checkpoint, as in a long run."""
    folder = RunFolder.of(config)
    expected = to_json(read_history(config), now=ISSUED_AT)
    ledger = Ledger(Rules.of(config))
    half = records()[:20]
    (start,) = [
        entry.end
        for number, entry in enumerate(JournalReader(folder.journal).records())
        if number == len(half)
    ]
    for record in half:
        ledger.apply(record, None)
    state = folder.checkpoints / "step_0" / "state"
    state.mkdir(parents=True)
    extra = {
        "run_id": "cafe",
        "position": list(start),
        "ledger": ledger.to_json(),
        "evaluations": {"last_version": -1, "num_late": 0, "open": None},
    }
    (state / "state.json").write_text(json.dumps({"step": 0, "extra": extra}))
    again = to_json(read_history(config), now=ISSUED_AT)
    assert again.pop("journal_written_s") >= 0 and expected.pop("journal_written_s") >= 0
    assert again == expected

    await journal.rotate()
    extra["position"] = list(journal.end)
    extra["ledger"] = read_history(config).ledger.to_json()
    (state / "state.json").write_text(json.dumps({"step": 1, "extra": extra}))
    assert journal.remove_before(journal.end.segment, keep_bytes=0) == 1
    assert to_json(read_history(config), now=ISSUED_AT)["issued"] == 6
    (state / "state.json").unlink()
    with pytest.raises(JournalCorrupt, match="begins after the run's start"):
        read_history(config)


def test_where_there_is_no_run_it_says_so(config: RunConfig) -> None:
    with pytest.raises(ConfigError, match=r"no run 'told' in .*told: no trainer has written"):
        read_history(config)


@pytest.mark.parametrize("as_json", [True, False])
def test_books_that_do_not_balance_are_exit_6(
    config: RunConfig,
    journal: Journal,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    as_json: bool,
) -> None:
    assert run(options(config, as_json=as_json)) == 0
    capsys.readouterr()
    monkeypatch.setattr(Ledger, "books", lambda self: replace(BOOKS, issued=self.num_issued))
    assert run(options(config, as_json=as_json)) == 6
    said = capsys.readouterr().out
    if as_json:
        assert json.loads(said)["difference"] == 2
    else:
        assert "THE BOOKS DO NOT BALANCE: +2 groups missing" in said


def test_no_reason_of_a_stranger_steers_the_terminal(
    config: RunConfig, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = Closed(group=4, end="dead", reason="boom \x1b[2J\u202e")
    journal.append(GroupsClosed(closed=(closed,)))
    assert run(options(config, as_json=False)) == 0
    said = capsys.readouterr().out
    assert "1 dead     boom \\x1b[2J\\u202e\n" in said


def test_a_segment_that_is_trimmed_meanwhile_is_looked_for_again(
    config: RunConfig, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing that still names it: the reader says so, and the next look is right."""
    journal.close()
    gone = "000001-000002.journal"
    real = journal_reader.segment_names
    listings = iter([lambda folder: [*real(folder), gone]])
    monkeypatch.setattr(
        journal_reader, "segment_names", lambda folder: next(listings, real)(folder)
    )
    monkeypatch.setattr(history, "_PAUSE_S", 0.0)
    assert read_history(config).ledger.num_issued == 6
    assert next(listings, None) is None


def test_it_loads_neither_torch_nor_pika(config: RunConfig, journal: Journal) -> None:
    asked = options(config, as_json=True)
    code = (
        "import sys, json; from argparse import Namespace; "
        "from consumers.trainer.telling.command import run; "
        f"run({asked!r}); "
        "assert not {'torch', 'pika', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["issued"] == 6
