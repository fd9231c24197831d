"""The listener outlives what it cannot read, and says why."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pika import data

from infra.amqp import listener as listening
from infra.amqp.io import strange_headers
from infra.amqp.listener import Listener


def not_text(folder: Path) -> str:
    (folder / "url").write_bytes(b"amqp://\xff\xfe")
    return (folder / "url").read_text(encoding="utf-8")


def a_folder(folder: Path) -> str:
    return folder.read_text(encoding="utf-8")


def no_url(folder: Path) -> str:
    return "gopher://u:geheim@h"


def no_host(folder: Path) -> str:
    return f"amqp://u:geheim@{'h' * 80}.invalid"


@pytest.mark.parametrize(
    ("find", "reason"),
    [
        (not_text, "UnicodeDecodeError"),
        (a_folder, "Is a directory"),
        (no_url, "not a broker URL"),
        (no_host, ""),
    ],
)
def test_a_broken_url_is_said_and_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find: Callable[[Path], str], reason: str
) -> None:
    monkeypatch.setattr(listening, "_PAUSE_S", 0.001)
    asked, again = [], threading.Event()

    def find_url() -> str:
        asked.append(1)
        if len(asked) > 1:
            again.set()
        return find(tmp_path)

    listener = Listener(find_url, run="r")
    listener.start()
    try:
        assert again.wait(10.0), listener.hearing.error
        said = listener.hearing.error
    finally:
        listener.stop()
    assert reason in said and said != "not connected yet" and "geheim" not in said


def test_headers_that_pika_cannot_read_do_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "decode_value", None)
    decoders: list[object] = []
    asked = threading.Event()

    def find_url() -> str:
        decoders.append(data.decode_value)
        asked.set()
        return ""

    listener = Listener(find_url, run="r")
    listener.start()
    try:
        assert asked.wait(10.0)
    finally:
        listener.stop()
    assert decoders[0] is strange_headers.decode_value
