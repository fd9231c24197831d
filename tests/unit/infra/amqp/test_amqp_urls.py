"""Broker URLs are checked, and never shown with their password."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.amqp.url import address, make_url, management_url, mask_url, parse_url
from infra.roles.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("amqp://u:secret@h:5672/v", "amqp://u:***@h:5672/v"),
        ("amqp://u:se%40cret@h/v", "amqp://u:***@h/v"),
        ("amqps://u:secret@[::1]:5671/%2F?x=secret", "amqps://u:***@[::1]:5671/%2F"),
        ("amqp://h:5672", "amqp://h:5672"),
        ("amqp://u:secret@h:nonsense/", "***"),
    ],
)
def test_masking(url: str, masked: str) -> None:
    assert mask_url(url) == masked


@given(password=st.text(min_size=6, max_size=40), host=st.sampled_from(["h", "10.0.0.1"]))
def test_no_password_survives_masking(password: str, host: str) -> None:
    url = make_url(user="u", password=password, host=host, port=5672)
    assert mask_url(url) == f"amqp://u:***@{host}:5672/%2F"


@given(st.text(max_size=60))
def test_masking_and_parsing_survive_anything(text: str) -> None:
    assert isinstance(mask_url(text), str)
    try:
        assert parse_url(text).hostname
    except ConfigError as error:
        assert error.exit_code == 2


@pytest.mark.parametrize(
    "url",
    ["", "h:5672", "http://h", "amqp://", "amqp://:5672", "amqp://u:secret@h:0/", "amqp://[h/"],
)
def test_what_is_no_broker_url_is_refused_with_advice(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)
    assert "WARREN_BROKER_URL" in caught.value.hint


def test_addresses() -> None:
    assert address("amqp://u:p@h:1234/") == "h:1234"
    assert address("amqp://u:p@h/") == "h:5672"
    assert address("amqps://u:p@h/") == "h:5671"


def test_the_management_api_is_10000_ports_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARREN_MANAGEMENT_URL", raising=False)
    assert management_url("amqp://u:p@h/v") == "http://u:p@h:15672"
    assert management_url("amqp://u:p@[::1]:1000/") == "http://u:p@[::1]:11000"
    monkeypatch.setenv("WARREN_MANAGEMENT_URL", "https://admin:x@m/")
    assert management_url("amqp://u:p@h/v") == "https://admin:x@m"
