"""The picture fits its terminal: nothing wraps, the most important stays."""

import io
import json
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from infra.observe.monitor.clean import (
    clean,
    human_bytes,
    human_count,
    human_seconds,
    sparkline,
)
from infra.observe.monitor.picture import Picture
from infra.observe.monitor.scene import BrokerSeen, Scene
from infra.observe.monitor.screen import screen, summary_line
from infra.observe.monitor.tables import chosen
from tests.unit.infra.observe.monitor.scenes import producer, reward, rollout, scene, trainer

SIZES = [(80, 24), (200, 50)]


def lines(staged: Scene, width: int, height: int | None) -> list[str]:
    output = io.StringIO()
    console = Console(file=output, width=width, highlight=False, markup=False)
    console.print(screen(Picture.of(staged), width=width, height=height))
    return [line.rstrip() for line in output.getvalue().splitlines()]


MANY = scene(*(rollout(number) for number in range(1, 65)))
WRONG = scene(
    trainer(barren=20, barren_s=9.0, barren_reason="all rewards equal 0"),
    producer(state="silent", heard_s=9.0),
    rollout(1, version=7, behind_s=40.0),
    rollout(2, state="silent", heard_s=70.0),
    ready={"credits": 5, "dead_letters": 2},
)


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("staged", [scene(), MANY, WRONG], ids=["well", "many", "wrong"])
def test_it_fits(staged: Scene, width: int, height: int) -> None:
    shown = lines(staged, width, height)
    assert len(shown) <= height
    assert max(cell_len(line) for line in shown) <= width
    text = "\n".join(shown)
    for essential in ("run  step 10/100", "prompts", "trainer", "ledger", "in flight"):
        assert essential in text


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_what_is_wrong_stands_at_the_top_with_what_to_do(width: int, height: int) -> None:
    shown = lines(WRONG, width, height)
    top = "\n".join(shown[2:8])
    assert "no producer is heard: 5 messages wait in credits" in top
    assert "→ start one: run.py producer RECIPE" in top


def test_a_healthy_run_says_so_and_which_side_is_slowest() -> None:
    shown = lines(scene(), 80, 24)
    assert shown[2] == "● all well"
    assert "credits: the trainer waits 50% of the time" in shown[3]


def test_a_long_name_leaves_room_for_the_rest() -> None:
    long = scene()
    shown = lines(replace(long, run=replace(long.run, name="n" * 90)), 80, 24)
    assert shown[0].startswith("n" * 19 + "…  step 10/100")
    assert "reward 0.500" in shown[0]


def test_many_workers_are_counted_and_those_in_trouble_shown() -> None:
    staged = scene(*(rollout(n) for n in range(1, 64)), rollout(64, state="silent", heard_s=60.0))
    text = "\n".join(lines(staged, 80, 24))
    assert "rollout-64" in text
    assert "more" in text
    assert "running" in text


def test_without_a_height_everybody_is_shown() -> None:
    text = "\n".join(lines(MANY, 120, None))
    assert all(f"rollout-{number} " in text for number in range(1, 65))


def test_without_the_management_api_it_says_what_is_not_known() -> None:
    whole = scene(broker=BrokerSeen(address="a:1", management="refused"))
    queues = tuple(
        replace(one, unacknowledged=None, in_per_s=None, out_per_s=None, bytes=None)
        for one in whole.queues
    )
    shown = lines(replace(whole, queues=queues), 120, 40)
    assert "management API not reached (refused): no rates, no bytes" in shown[1]
    assert any("prompts" in line and "?" in line for line in shown)


def test_an_engine_s_name_cannot_steer_the_terminal() -> None:
    text = "".join(lines(scene(rollout(engine="x\x1b]0;owned\x07\u202e")), 160, None))
    assert "x·]0;owned··" in text
    assert text.isprintable()


def test_chosen_keeps_order_and_counts_the_rest() -> None:
    workers = [trainer(), producer(), *(rollout(number) for number in range(1, 9))]
    shown, rest = chosen(workers, 5)
    assert [one.name for one in shown] == ["trainer", "producer-1", "rollout-1", "rollout-2"]
    assert len(rest) == 6
    assert chosen(workers, 10) == (workers, [])


def test_the_object_for_machines_is_whole() -> None:
    told = json.loads(json.dumps(Picture.of(WRONG).to_json()))
    assert set(told) == {
        "run", "broker", "queues", "workers", "rollouts", "staleness_forecast", "ledger",
        "rewards", "bottleneck", "findings", "listened_s",
    }  # fmt: skip
    assert told["findings"][0]["fault"] == "stopped_producer"
    assert told["rollouts"]["by_version"] == {"9": 2, "10": 2}
    assert told["rollouts"]["by_age"]["<10 s"] == 3
    assert told["ledger"] == {
        "issued": 40, "trained": 20, "filtered": 16, "stale": 0, "dead": 0, "open": 4,
        "balanced": True,
    }  # fmt: skip


def test_one_line_for_where_nothing_can_be_drawn() -> None:
    line = summary_line(Picture.of(scene(ready={"prompts": 3})))
    assert line == (
        "step 10/100 | version 10 | reward 0.500 | in flight 8/16 | prompts 3 | open 4 | "
        "slowest credits | running"
    )
    early = scene(workers=(), listened_s=3.0)
    early = replace(early, run=replace(early.run, wanted=""))
    begun = replace(early, workers=(rollout(1), rollout(2), reward()))
    for unheard, who in ((early, "nobody"), (begun, "1 reward, 2 rollout")):
        assert summary_line(Picture.of(unheard)) == (
            f"no word from the trainer yet | listening for 3 s | heard of this run: {who}"
        )
    gone = scene(broker=BrokerSeen(address="a:1", connected=False, since_s=5.0))
    assert summary_line(Picture.of(gone)) == "broker not reached for 5 s"


def test_words_for_numbers() -> None:
    assert [human_bytes(n) for n in (0, 1536, 3 * 2**30)] == ["0 B", "1.5 KiB", "3.0 GiB"]
    assert [human_count(n) for n in (950, 18_200, 3_100_000)] == ["950", "18.2k", "3.1M"]
    seconds = (0.012, 1.5, 9, 180, 5400)
    assert [human_seconds(s) for s in seconds] == ["12 ms", "1.5 s", "9 s", "3 min", "1.5 h"]
    assert sparkline((0.0, 0.5, 1.0), 2) == "▁█"
    assert sparkline((0.5, 0.5), 8) == "▄▄"
    assert sparkline((), 8) == ""
    assert sparkline((1e308, -1e308, float("nan"), 5e-324), 8) == "█▁▅"
    assert clean("a\tb\x1b[0m\n c") == "a b·[0m c"
