"""Fixtures shared by all tests."""

pytest_plugins = ["tests.broker_fixtures", "tests.processes"]
