"""Who may ask, what for, and with which words on the answer."""

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.observe.page.command import find_runs
from infra.observe.page.runs import Runs
from infra.observe.page.server import PageServer, is_allowed_host
from infra.roles.errors import ConfigError


@pytest.fixture(scope="module")
def server(written_root: Path) -> Iterator[PageServer]:
    with PageServer(Runs(written_root)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.close()
        thread.join()


def ask(
    server: PageServer, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=named)
    response = connection.getresponse()
    answer = response.status, dict(response.getheaders()), response.read()
    connection.close()
    return answer


def error_of(content: bytes) -> str:
    found: Any = json.loads(content)
    return str(found["error"])


def test_every_answer_forbids_what_the_page_does_not_need(server: PageServer) -> None:
    for path in ("/", "/js/main.js", "/api/runs", "/nothing"):
        _, headers, _ = ask(server, path)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE"])
def test_only_get_is_answered(server: PageServer, method: str) -> None:
    status, _, content = ask(server, "/api/runs", method=method)
    assert status == 405
    assert method == "HEAD" or "only GET" in error_of(content)


def test_a_name_that_was_bent_to_this_address_is_refused(server: PageServer) -> None:
    for path in ("/", "/api/runs"):
        status, _, content = ask(server, path, Host=f"evil.example:{server.port}")
        assert status == 421
        assert "written" not in content.decode()


def test_another_site_may_link_here_but_not_ask(server: PageServer) -> None:
    assert ask(server, "/", Sec_Fetch_Site="cross-site")[0] == 200
    assert ask(server, "/api/runs", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(server, "/api/runs", Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/../command.py", "/js/../../server.py", "/%2e%2e/server.py", "//etc/passwd", "/config.json"],
)
def test_no_file_is_served_by_its_path(server: PageServer, path: str) -> None:
    assert ask(server, path)[0] == 404


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/rollouts?run=../written", 404, "no run '../written' here"),
        ("/api/rollouts?run=written&sort=x", 400, "one of newest, oldest"),
        ("/api/rollouts?run=written&step=nan", 400, "is no number"),
        ("/api/groups?run=written&sort=x", 400, "one of newest"),
        ("/api/rollout?run=written&id=9.9", 404, "ids are GROUP.INDEX"),
        ("/api/secrets?run=written", 404, "no such question"),
    ],
)
def test_a_wrong_question_is_told_what_is_wrong(
    server: PageServer, path: str, status: int, said: str
) -> None:
    found, _, content = ask(server, path)
    assert (found, said in error_of(content)) == (status, True)


@pytest.mark.parametrize(
    ("header", "bound", "allowed"),
    [
        ("127.0.0.1:8484", "127.0.0.1", True),
        ("localhost:8484", "127.0.0.1", True),
        ("LOCALHOST", "127.0.0.1", True),
        ("[::1]:8484", "::1", True),
        ("evil.example", "127.0.0.1", False),
        ("localhost.evil.example", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("10.0.0.7:8484", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        ("[", "127.0.0.1", False),
        ("10.0.0.7:8484", "0.0.0.0", True),
        ("evil.example", "0.0.0.0", False),
        ("box.lan", "box.lan", True),
    ],
)
def test_which_names_the_server_goes_by(header: str, bound: str, allowed: bool) -> None:
    assert is_allowed_host(header, bound=bound) is allowed


def test_a_port_that_is_taken_is_named(server: PageServer, written_root: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{server.port}"):
        PageServer(Runs(written_root), port=server.port)


def test_a_folder_without_a_run_is_refused(tmp_path: Path, written_root: Path) -> None:
    assert find_runs(str(written_root)) == written_root
    assert find_runs(str(written_root.parent)) == written_root.parent
    with pytest.raises(ConfigError, match="is no run folder, and holds none"):
        find_runs(str(tmp_path))
    with pytest.raises(ConfigError, match="no recipe and no run folder"):
        find_runs(str(tmp_path / "gone"))
