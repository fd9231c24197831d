"""Fixtures shared by all tests. No hypothesis example fails because the machine is busy."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.broker_fixtures", "tests.processes"]

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
