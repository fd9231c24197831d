"""How often and how soon a dead process is started again."""

from hypothesis import given
from hypothesis import strategies as st

from infra.roles.fleet.restarts import Restarts
from schemas.config import SuperviseSection


def section(**keys: float) -> SuperviseSection:
    return SuperviseSection.model_validate(keys)


def test_the_pause_doubles_up_to_its_bound() -> None:
    restarts = Restarts(section(restarts=7, backoff=0.5, max_backoff=10))
    granted = [restarts.after_death("a", float(now)) for now in range(7)]
    assert [g.delay_s for g in granted if g] == [0.5, 1, 2, 4, 8, 10, 10]
    assert restarts.after_death("a", 7.0) is None


def test_each_process_has_an_account_of_its_own() -> None:
    restarts = Restarts(section(restarts=1))
    assert restarts.after_death("a", 0.0) is not None
    assert restarts.after_death("b", 0.0) is not None
    assert restarts.after_death("a", 1.0) is None


def test_none_at_all() -> None:
    assert Restarts(section(restarts=0)).after_death("a", 0.0) is None


def test_a_thousand_restarts_do_not_overflow() -> None:
    restarts = Restarts(section(restarts=5000, max_backoff=3))
    granted = [restarts.after_death("a", 0.0) for _ in range(5000)]
    assert granted[-1] is not None
    assert granted[-1].delay_s == 3


@given(st.lists(st.floats(0, 50), max_size=40), st.integers(0, 4), st.floats(1, 100))
def test_granted_as_long_as_the_window_holds_few_enough(
    gaps: list[float], limit: int, window: float
) -> None:
    restarts = Restarts(section(restarts=limit, window=window))
    now, deaths = 0.0, []
    for gap in gaps:
        now += gap
        deaths.append(now)
        within = sum(now - death <= window for death in deaths)
        granted = restarts.after_death("a", now)
        assert (granted is not None) == (within <= limit)
        if granted is not None:
            assert granted.number == within


def test_what_is_told() -> None:
    granted = Restarts(section(restarts=5, backoff=2)).after_death("rollout-1", 0.0)
    assert str(granted) == "starting it again in 2 s (1 of 5 within 600 s)"
    half = Restarts(section(backoff=0.25)).after_death("rollout-1", 0.0)
    assert str(half).startswith("starting it again in 0.25 s")
