"""Ten faults of a live run, each staged, measured until the monitor names it, and lifted.

A fault returns the seconds from its beginning until `run.py monitor --json` printed its name, and
the finding.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e.stage import Stage

Named = tuple[float, dict[str, str]]
NEVER = ("rollout.engine_options={mean_tokens=20,token_s=0.04,tick_s=0.05,load_s=100000}",)
SMALL = ("rollout.slots=2",)


def stuck_tool(stage: Stage) -> Named:
    """Calls do not return."""
    with _weather(stage, "stuck"):
        return stage.until_named("stuck_tool", "add")


def slow_reward(stage: Stage) -> Named:
    """A score takes three seconds."""
    with _weather(stage, "slow"):
        return stage.until_named("slow_reward", "score")


def zero_variance(stage: Stage) -> Named:
    """All rewards are equal."""
    with _weather(stage, "equal"):
        return stage.until_named("zero_variance")


def stopped_producer(stage: Stage) -> Named:
    """The only one stands still."""
    stage.signal("producer-1", signal.SIGSTOP)
    try:
        return stage.until_named("stopped_producer")
    finally:
        stage.signal("producer-1", signal.SIGCONT)


def version_skew(stage: Stage) -> Named:
    """One more worker, whose first update of weights never ends."""
    with _further(stage, NEVER, "late"):
        stage.until(lambda picture: _worker(picture, "late")["version"] >= 0, "late serves nothing")
        return stage.until_named("version_skew", "late")


def dead_engine(stage: Stage) -> Named:
    """The engine of one worker gives no token to anybody."""
    with _weather(stage, "mute"):
        return stage.until_named("dead_engine", "rollout-1")


def poison_prompt(stage: Stage) -> Named:
    """Whoever runs one certain call dies."""
    stage.past.add("poison_prompt")
    with _weather(stage, "poison"):
        return stage.until_named("poison_prompt")


def full_store(stage: Stage) -> Named:
    """The weight store's disk takes no byte more."""
    with _weather(stage, "full"):
        return stage.until_named("full_store", "trainer")


def broker_alarm(stage: Stage) -> Named:
    """The broker says that it has no memory left."""
    stage.set_memory_limit("1MB")
    try:
        return stage.until_named("broker_alarm")
    finally:
        stage.set_memory_limit("4GB")


def too_few_slots(stage: Stage) -> Named:
    """Both workers leave, one with two slots is there for them."""
    with _further(stage, SMALL, "small"):
        stage.until(lambda picture: _worker(picture, "small")["slots"] == 2, "small is not there")
        for name in ("rollout-1", "rollout-2"):
            stage.signal(name, signal.SIGTERM)
        return stage.until_named("too_few_slots")


FAULTS: dict[str, Callable[[Stage], Named]] = {
    "a stuck tool": stuck_tool,
    "a slow reward": slow_reward,
    "zero-variance groups": zero_variance,
    "a stopped producer": stopped_producer,
    "version skew": version_skew,
    "a dead engine": dead_engine,
    "a poison prompt": poison_prompt,
    "a full store": full_store,
    "a broker alarm": broker_alarm,
    "too few slots": too_few_slots,
}
"""In an order in which none hides the next; the last one leaves the run without its workers."""


def stage_all(stage: Stage) -> Iterator[tuple[str, float, dict[str, str]]]:
    """Each fault on a run that is well before."""
    for name, fault in FAULTS.items():
        stage.until_well()
        yield name, *fault(stage)


def show(name: str, seconds: float, finding: dict[str, str]) -> str:
    """For the screen."""
    return f"{name:22} {seconds:5.1f} s  {finding['what']}\n{'':32}-> {finding['do']}"


@contextmanager
def _weather(stage: Stage, word: str) -> Iterator[None]:
    stage.set_weather(word)
    try:
        yield
    finally:
        stage.set_weather("calm")


@contextmanager
def _further(stage: Stage, overrides: tuple[str, ...], name: str) -> Iterator[None]:
    """A rollout worker of its own; it goes as if it had been killed, which it is."""
    process = stage.start("rollout", *overrides, "--name", name)
    try:
        yield
    finally:
        stage.past.add(name)
        process.kill()
        process.wait()


def _worker(picture: dict[str, Any], name: str) -> dict[str, Any]:
    """A worker as the monitor sees it; one that is not there serves nothing."""
    found = [one for one in picture["workers"] if one["name"] == name]
    return found[0] if found else {"version": -1, "slots": 0, "slots_used": 0}
