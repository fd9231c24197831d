"""Options of the SGLang engine in a recipe."""

import http.server
import sys
import threading

import pytest

from consumers.rollout.engines.build import build_engine, check_engine, check_server
from consumers.rollout.engines.sglang.engine import SglangEngine
from consumers.rollout.engines.sglang.options import (
    API_KEY,
    check_reachable,
    check_version,
    read_options,
)
from infra.roles.errors import ConfigError
from schemas.config import RunConfig


def recipe(**rollout) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": {"name": "r", "steps": 1},
            "model": {"path": "nowhere", "dtype": "float32"},
            "data": {"train": [{"path": "x.jsonl"}]},
            "reward": {"functions": [{"use": "f"}]},
            "trainer": {"lr": 1e-3},
            "rollout": {"engine": "sglang", **rollout},
        }
    )


@pytest.mark.parametrize("url", ["http://u:geheim@host:1", "https://host/v1?key=geheim"])
def test_secrets_have_no_place_in_the_address(url):
    with pytest.raises(ConfigError, match="keys in the environment") as caught:
        read_options({"url": url})
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "name no server"),
        ({"python": "a", "url": "b"}, "name python and url servers"),
        ({"python": "a", "pyhton": "b"}, "engine_options.pyhton: Extra inputs"),
        ({"python": "a", "start_timeout": 0}, "engine_options.start_timeout"),
        ({"python": "a", "arguments": ["--port", "1"]}, "--port cannot be set here: the engine"),
        ({"python": "a", "arguments": ["--dtype=auto"]}, "--dtype cannot be set.*model.dtype"),
        ({"url": "host:30000"}, "url does not begin with http://"),
        ({"url": "http://b", "arguments": ["--tp-size", "2"]}, "for a server that runs already"),
        ({"url": "http://b", "environment": {"A": "b"}}, "for a server that runs already"),
        ({"python": "a", "kv_cache": "keep"}, "kv_cache is 'keep'"),
    ],
)
def test_wrong_options_are_named(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        read_options(options)


def test_the_recipe_names_the_engine():
    options = {"url": "http://127.0.0.1:1"}
    assert isinstance(build_engine(recipe(engine_options=options)), SglangEngine)


def test_kept_caches_are_refused_with_the_reason():
    with pytest.raises(ConfigError, match="prefixes of old weights"):
        build_engine(
            recipe(engine_options={"url": "http://x"}, kv_cache="keep", on_sync="in_flight")
        )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"command": ["no-such-program"]}, "no program 'no-such-program'"),
        ({"python": "/nowhere/python"}, "no file '/nowhere/python'"),
        ({"python": sys.executable}, "SGLang is not installed in the environment"),
    ],
)
def test_servers_that_cannot_start_are_found_out_beforehand(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        check_reachable(read_options(options))


def test_one_server_is_for_one_worker():
    check_engine(recipe(engine_options={"url": "http://h"}))
    with pytest.raises(ConfigError, match="each worker needs a server of its own"):
        check_engine(recipe(engine_options={"url": "http://h"}, workers=2))


def test_min_p_and_seeds_are_refused_before_a_server_dies_of_them():
    options = {"command": [sys.executable], "arguments": ["--enable-deterministic-inference"]}
    check_engine(recipe(engine_options=options))
    check_engine(recipe(engine_options={"command": [sys.executable]}, min_p=0.1))
    with pytest.raises(ConfigError, match="min_p would end an SGLang server"):
        check_engine(recipe(engine_options=options, min_p=0.1))


def test_an_address_where_nothing_or_something_else_answers_is_found_out_by_check():
    class Silent(http.server.BaseHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Silent) as other:
        there = f"http://127.0.0.1:{other.server_address[1]}"
        threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01}).start()
        with pytest.raises(ConfigError, match=f"{there} is no SGLang server: it answers 501"):
            check_server(recipe(engine_options={"url": there}))
        other.shutdown()
    with pytest.raises(ConfigError, match=r"no SGLang server answers: .*ConnectError"):
        check_server(recipe(engine_options={"url": there}))
    check_server(recipe(engine_options={"python": "/nowhere/python"}))


def test_what_will_be_used_is_told_without_the_keys(monkeypatch):
    monkeypatch.setenv(API_KEY, "secret")
    told = check_reachable(read_options({"url": "http://host:1"}))
    assert told == f"SGLang at http://host:1, keys: {API_KEY}"
    assert check_reachable(read_options({"command": [sys.executable]})).startswith("SGLang by ")


@pytest.mark.parametrize("version", ["0.5.23", "0.5.24.post1", "0.5.30rc1"])
def test_versions_that_are_known(version):
    check_version(version)


@pytest.mark.parametrize("version", ["0.5.22", "0.4.99", "0.6.0", "1.0.0", "main", ""])
def test_versions_that_are_not(version):
    with pytest.raises(ConfigError, match=r"knows SGLang 0\.5\.23"):
        check_version(version)
