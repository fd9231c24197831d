"""RabbitMQ versions of other Debian suites: where they come from, and what is refused."""

from pathlib import Path

import pytest

from infra.amqp.errors import BrokerNotInstalled, LocalBrokerFailed
from infra.amqp.local_broker import LocalBroker
from infra.amqp.node import apt
from infra.amqp.node.__main__ import main
from infra.amqp.node.install import PREFIX_VARIABLE, Install
from infra.amqp.node.versions import SUITES, fetch_version

STANZAS = """\
# a comment
Types: deb deb-src
URIs: https://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /keys/debian.gpg

Types: deb-src
URIs: https://mirror.example/sources
Suites: bookworm
Components: main
"""
LINES = """\
# deb https://off.example/debian bookworm main
deb-src https://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/keys/one.gpg] https://mirror.example/one bookworm main contrib
deb https://mirror.example/two bookworm-security main
"""


def lay(prefix: Path, version: str, *, loader: bool = False) -> Install:
    for name in ("bin/rabbitmq-server", f"lib/rabbitmq_server-{version}/plugins"):
        path = prefix / "usr/lib/rabbitmq" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("usr/lib/erlang/erts-15/bin/epmd", "usr/lib/x86_64-linux-gnu/libcrypto.so.3"):
        path = prefix / name
        path.parent.mkdir(parents=True)
        path.touch()
    if loader:
        (prefix / "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2").touch()
    return Install(prefix=prefix)


def test_both_kinds_of_source_files_are_read() -> None:
    (stanza,) = apt.parse_sources(STANZAS)
    assert stanza.uris == ("https://mirror.example/debian",)
    assert stanza.suites == ("bookworm", "bookworm-updates")
    assert stanza.signed_by == "/keys/debian.gpg"
    one, two = apt.parse_sources(LINES)
    assert (one.uris, one.suites) == (("https://mirror.example/one",), ("bookworm",))
    assert (one.signed_by, two.signed_by) == ("/keys/one.gpg", "")


def test_another_suite_comes_from_the_mirror_of_this_system() -> None:
    sources = [*apt.parse_sources(LINES), *apt.parse_sources(STANZAS)]
    assert apt.stanza_for("forky", sources, codename="bookworm") == (
        "Types: deb\nURIs: https://mirror.example/one\nSuites: forky\nComponents: main\n"
        "Signed-By: /keys/one.gpg\n"
    )
    assert apt.stanza_for("forky", sources, codename="noble") is None


def test_what_brings_its_own_c_library_is_not_mixed_with_the_systems(tmp_path: Path) -> None:
    alike = lay(tmp_path / "alike", "3.10.8")
    assert alike.library_path() == str(tmp_path / "alike/usr/lib/x86_64-linux-gnu")
    assert lay(tmp_path / "other", "4.3.6", loader=True).library_path() == ""


def test_what_is_there_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing should be fetched")

    monkeypatch.setattr("infra.amqp.node.apt.download", refuse)
    lay(tmp_path / "mq", "4.0.5")
    assert fetch_version("4.0", tmp_path / "mq").version() == "4.0.5"
    assert main(["4.0", "--into", str(tmp_path / "mq")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'mq'}\n"
    with pytest.raises(BrokerNotInstalled, match="holds something else"):
        fetch_version("4.3", tmp_path / "mq")


def test_unknown_versions_and_missing_mirrors_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BrokerNotInstalled, match=r"no RabbitMQ '2\.8' to fetch") as caught:
        fetch_version("2.8", tmp_path / "mq")
    assert all(version in str(caught.value) for version in SUITES)
    monkeypatch.setattr("infra.amqp.node.apt.source_files", list)
    assert main(["4.3", "--into", str(tmp_path / "mq")]) == 3
    assert "no Debian mirror" in capsys.readouterr().err
    assert not (tmp_path / "mq").exists()


def test_the_data_of_another_version_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path / "mq", "4.3.6")
    monkeypatch.setenv(PREFIX_VARIABLE, str(tmp_path / "mq"))
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "version").write_text("3.10.8")
    with pytest.raises(
        LocalBrokerFailed, match=r"RabbitMQ 3\.10\.8 wrote .* this is 4\.3\.6"
    ) as told:
        LocalBroker(folder).start()
    assert PREFIX_VARIABLE in str(told.value)
    assert (folder / "version").read_text() == "3.10.8"
