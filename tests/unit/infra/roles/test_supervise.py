"""Who ends whom, and when: with processes that only pretend."""

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.roles.errors import ExitCode
from infra.roles.fleet import supervise
from infra.roles.fleet.children import RoleProcess, exit_words
from infra.roles.fleet.interrupts import Interrupts
from infra.roles.fleet.supervise import Hooks, Patience, Supervisor
from schemas.config import SuperviseSection


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
    """Ends with `code` at `ends_at`, or `obeys_after` seconds behind a SIGTERM.

    `lives`: when and with which code each of its lives ends, instead of `ends_at` and `code`.
    """

    def __init__(
        self,
        clock: Clock,
        role: str,
        *,
        ends_at: float = float("inf"),
        code: int = 0,
        lives: tuple[tuple[float, int], ...] = (),
        obeys_after: float = 0.5,
    ) -> None:
        super().__init__(role, f"{role}-1", [], log=Path("none"))
        self._clock, self._obeys_after = clock, obeys_after
        self._lives = list(lives) or [(ends_at, code)]
        self._ends_at, self._code = self._lives.pop(0)
        self.began_at = [0.0]
        self.told_at: float | None = None
        self.killed_at: float | None = None

    def begin_again(self) -> None:
        assert self.exit_code() is not None
        self.began_at.append(self._clock.now)
        self._ends_at, self._code = self._lives.pop(0)

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
    children: list[Pretender],
    *,
    interrupts: Interrupts | None = None,
    tick: Callable[[], None] = lambda: None,
    is_over: bool = True,
    no_room: int = 0,
    **section: float,
) -> tuple[ExitCode, Supervisor]:
    """Supervise until the end; `no_room`: that many restarts find no room for a process."""
    failures = [OSError("no room")] * no_room

    def restart(child: RoleProcess) -> None:
        assert isinstance(child, Pretender)
        if failures:
            raise failures.pop()
        child.begin_again()

    supervisor = Supervisor(
        children,
        supervise=SuperviseSection.model_validate(section),
        interrupts=interrupts or Interrupts(),
        patience=Patience(finish_s=20, leave_s=30),
        hooks=Hooks(each_tick=tick, restart=restart, changed=lambda: None, is_over=lambda: is_over),
    )
    return supervisor.run(), supervisor


def messages(caplog: pytest.LogCaptureFixture, level: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == level]


def test_the_others_leave_by_themselves_after_the_trainer(clock: Clock) -> None:
    trainer = Pretender(clock, "trainer", ends_at=5)
    worker = Pretender(clock, "rollout", ends_at=8)
    code, _ = watch([trainer, worker])
    assert code is ExitCode.DONE
    assert worker.told_at is None


def test_who_stays_after_the_end_is_told_then_ended(clock: Clock) -> None:
    trainer = Pretender(clock, "trainer", ends_at=5)
    polite = Pretender(clock, "reward")
    deaf = Pretender(clock, "rollout", obeys_after=float("inf"))
    code, _ = watch([trainer, polite, deaf])
    assert code is ExitCode.DONE
    assert polite.killed_at is None
    assert polite.told_at == deaf.told_at == pytest.approx(25, abs=0.3)
    assert deaf.killed_at == pytest.approx(55, abs=0.5)


def test_a_dead_role_is_started_again_while_the_others_go_on(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Pretender(clock, "trainer", ends_at=60)
    worker = Pretender(clock, "rollout", lives=((3, -9), (8, 1), (100, 0)))
    other = Pretender(clock, "reward", ends_at=61)
    code, supervisor = watch([trainer, worker, other], restarts=5, backoff=2)
    assert (code, supervisor.failure) == (ExitCode.DONE, None)
    assert worker.began_at == [0, pytest.approx(5, abs=0.3), pytest.approx(12, abs=0.5)]
    assert other.told_at is None
    assert messages(caplog, "WARNING") == [
        "rollout-1 died (killed by SIGKILL); starting it again in 2 s (1 of 5 within 600 s)",
        "rollout-1 died (exit code 1); starting it again in 4 s (2 of 5 within 600 s)",
    ]


def test_a_death_too_many_ends_the_run(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    trainer = Pretender(clock, "trainer")
    broken = Pretender(clock, "rollout", lives=((1, -9), (3, -9), (6, -11)))
    code, supervisor = watch([trainer, broken], restarts=2, backoff=1)
    assert code is ExitCode.ROLE_DIED
    assert supervisor.failure == (broken, -11)
    assert trainer.told_at == pytest.approx(6, abs=0.3)
    assert messages(caplog, "ERROR") == [
        "rollout-1 died (killed by SIGSEGV): too often; stopping the others"
    ]


def test_deaths_are_forgotten(clock: Clock) -> None:
    trainer = Pretender(clock, "trainer", ends_at=500)
    lives = ((100.0, -9), (200.0, -9), (300.0, -9), (400.0, -9), (501.0, 0))
    code, _ = watch([trainer, Pretender(clock, "rollout", lives=lives)], restarts=1, window=90)
    assert code is ExitCode.DONE


@pytest.mark.parametrize("number", [2, 5, 6, 8])
def test_what_would_only_happen_again_ends_the_run_with_its_code(clock: Clock, number: int) -> None:
    trainer = Pretender(clock, "trainer", ends_at=3, code=number)
    worker = Pretender(clock, "rollout")
    code, supervisor = watch([trainer, worker])
    assert code == number
    assert supervisor.failure == (trainer, number)
    assert trainer.began_at == [0]
    assert worker.told_at == pytest.approx(3, abs=0.2)


@pytest.mark.parametrize(("number", "told"), [(3, 3), (7, 7), (1, 4), (77, 4), (130, 4)])
def test_the_exit_code_tells_what_the_last_death_tells(
    clock: Clock, number: int, told: int
) -> None:
    children = [Pretender(clock, "trainer"), Pretender(clock, "rollout", ends_at=1, code=number)]
    code, _ = watch(children, restarts=0)
    assert code == told


def test_after_the_end_nobody_is_started_again(clock: Clock) -> None:
    trainer = Pretender(clock, "trainer", ends_at=5)
    waiting = Pretender(clock, "reward", lives=((4.5, -9), (1000, 0)))
    dying = Pretender(clock, "rollout", lives=((6, -9), (1000, 0)))
    code, supervisor = watch([trainer, waiting, dying], backoff=2, leavers=True)
    assert (code, supervisor.failure) == (ExitCode.DONE, None)
    assert (waiting.began_at, dying.began_at) == ([0], [0])
    assert clock.now < 10


def test_an_interrupt_during_a_pause_leaves_at_once(clock: Clock) -> None:
    interrupts = Interrupts()
    trainer = Pretender(clock, "trainer")
    worker = Pretender(clock, "rollout", lives=((1, -9), (1000, 0)))

    def press() -> None:
        interrupts.count = int(clock.now >= 2)

    code, _ = watch(
        [trainer, worker], interrupts=interrupts, tick=press, backoff=30, max_backoff=30
    )
    assert code is ExitCode.INTERRUPTED
    assert worker.began_at == [0]
    assert clock.now == pytest.approx(2.6, abs=0.5)


def test_a_machine_without_room_is_asked_again(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Pretender(clock, "trainer", ends_at=50)
    worker = Pretender(clock, "rollout", lives=((1, -9), (51, 0)))
    code, _ = watch([trainer, worker], no_room=1, backoff=1)
    assert code is ExitCode.DONE
    assert worker.began_at == [0, pytest.approx(4, abs=0.4)]
    assert "rollout-1 cannot be started (no room); starting it again in 2 s" in caplog.text


def test_a_machine_that_stays_without_room_ends_the_run(clock: Clock) -> None:
    trainer = Pretender(clock, "trainer")
    worker = Pretender(clock, "rollout", ends_at=1, code=-9)
    code, supervisor = watch([trainer, worker], no_room=100, restarts=3, backoff=1)
    assert code is ExitCode.ROLE_DIED
    assert supervisor.failure == (worker, 1)
    assert trainer.told_at is not None


def test_a_worker_that_leaves_well_stops_nothing(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Pretender(clock, "trainer", ends_at=60)
    leaver = Pretender(clock, "rollout", ends_at=3)
    code, _ = watch([trainer, leaver])
    assert code is ExitCode.DONE
    assert messages(caplog, "WARNING") == ["the trainer goes on, but no rollout is left"]


def test_leavers_are_replaced_if_wanted(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    trainer = Pretender(clock, "trainer", lives=((10, 0), (40, 2)))
    leaver = Pretender(clock, "rollout", lives=((3, 0), (1000, 0)))
    watch([trainer, leaver], is_over=False, leavers=True, backoff=1)
    assert leaver.began_at == [0, pytest.approx(4, abs=0.3)]
    assert trainer.began_at == [0, pytest.approx(11, abs=0.3)]
    assert "rollout-1 left; starting it again in 1 s (1 of 5 within 600 s)" in caplog.text


def test_who_leaves_because_the_run_is_over_is_not_replaced(clock: Clock) -> None:
    worker = Pretender(clock, "rollout", lives=((3, 0), (1000, 0)))
    code, _ = watch([Pretender(clock, "trainer", ends_at=6), worker], leavers=True, backoff=1)
    assert code is ExitCode.DONE
    assert worker.began_at == [0]


def test_a_trainer_that_leaves_early_takes_the_others_along(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Pretender(clock, "rollout")
    code, _ = watch([Pretender(clock, "trainer", ends_at=6), worker], is_over=False)
    assert code is ExitCode.INTERRUPTED
    assert worker.told_at == pytest.approx(6, abs=0.2)
    assert "the trainer left before the end of the run" in caplog.text


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
