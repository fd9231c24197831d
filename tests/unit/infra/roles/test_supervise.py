"""Who ends whom, and when: with processes that only pretend."""

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.roles.errors import ExitCode
from infra.roles.fleet import supervise
from infra.roles.fleet.children import RoleProcess, exit_words
from infra.roles.fleet.interrupts import Interrupts
from infra.roles.fleet.supervise import Patience, Supervisor


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 10_000, "the supervisor waits for ever"


class Pretender(RoleProcess):
    """Ends with `code` at `ends_at`, or `obeys_after` seconds behind a SIGTERM."""

    def __init__(
        self,
        clock: Clock,
        role: str,
        *,
        ends_at: float = float("inf"),
        code: int = 0,
        obeys_after: float = 0.5,
    ) -> None:
        super().__init__(role, f"{role}-1", [], log=Path("none"))
        self._clock, self._ends_at, self._code = clock, ends_at, code
        self._obeys_after = obeys_after
        self.told_at: float | None = None
        self.killed_at: float | None = None

    def exit_code(self) -> int | None:
        if self.killed_at is not None:
            return -9
        return self._code if self._clock.now >= self._ends_at else None

    def terminate(self) -> None:
        if self.told_at is None:
            self.told_at = self._clock.now
            self._ends_at = min(self._ends_at, self._clock.now + self._obeys_after)

    def kill(self) -> None:
        if self.exit_code() is None:
            self.killed_at = self._clock.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(supervise, "time", clock)
    return clock


def watch(
    children: list[Pretender], *, interrupts: Interrupts | None = None, tick: Callable[[], None]
) -> tuple[ExitCode, Supervisor]:
    supervisor = Supervisor(
        children,
        interrupts=interrupts or Interrupts(),
        patience=Patience(finish_s=20, leave_s=30),
        each_tick=tick,
    )
    return supervisor.run(), supervisor


def test_the_others_leave_by_themselves_after_the_trainer(clock: Clock) -> None:
    trainer = Pretender(clock, "trainer", ends_at=5)
    worker = Pretender(clock, "rollout", ends_at=8)
    code, _ = watch([trainer, worker], tick=lambda: None)
    assert code is ExitCode.DONE
    assert worker.told_at is None


def test_who_stays_after_the_end_is_told_then_ended(clock: Clock) -> None:
    trainer = Pretender(clock, "trainer", ends_at=5)
    polite = Pretender(clock, "reward")
    deaf = Pretender(clock, "rollout", obeys_after=float("inf"))
    code, _ = watch([trainer, polite, deaf], tick=lambda: None)
    assert code is ExitCode.DONE
    assert polite.killed_at is None
    assert polite.told_at == deaf.told_at == pytest.approx(25, abs=0.3)
    assert deaf.killed_at == pytest.approx(55, abs=0.5)


def test_the_first_failure_stops_all(clock: Clock) -> None:
    trainer = Pretender(clock, "trainer")
    broken = Pretender(clock, "rollout", ends_at=3, code=2)
    code, supervisor = watch([trainer, broken], tick=lambda: None)
    assert code is ExitCode.ROLE_DIED
    assert supervisor.failure == (broken, 2)
    assert trainer.told_at == pytest.approx(3, abs=0.2)


def test_a_worker_that_leaves_well_stops_nothing(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Pretender(clock, "trainer", ends_at=60)
    leaver = Pretender(clock, "rollout", ends_at=3)
    code, _ = watch([trainer, leaver], tick=lambda: None)
    assert code is ExitCode.DONE
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "the trainer goes on, but no rollout is left"
    ]


def test_an_interrupt_asks_and_a_second_insists(clock: Clock) -> None:
    interrupts = Interrupts()
    trainer = Pretender(clock, "trainer", obeys_after=25)
    worker = Pretender(clock, "rollout")

    def press() -> None:
        interrupts.count = int(clock.now >= 2) + int(clock.now >= 10)

    code, supervisor = watch([trainer, worker], interrupts=interrupts, tick=press)
    assert code is ExitCode.INTERRUPTED
    assert supervisor.failure is None
    assert worker.killed_at is None
    assert trainer.told_at == pytest.approx(2, abs=0.3)
    assert trainer.killed_at == pytest.approx(10, abs=0.3)


def test_words_for_exit_codes() -> None:
    assert exit_words(3) == "exit code 3"
    assert exit_words(-9) == "killed by SIGKILL"
    assert exit_words(-200) == "killed by signal 200"
