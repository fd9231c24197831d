"""Memory of a family of processes, against what the kernel says of one."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.observe.resources import ResourceSampler, pss_bytes
from infra.roles.fleet.processes import alive, descendants, end_all

PARENT = (
    "import subprocess, sys, time;"
    "child = subprocess.Popen([sys.executable, '-c',"
    ' \'x = bytearray(60_000_000); x[::4096] = b"1" * len(x[::4096]); print(1, flush=True);'
    " import time; time.sleep(60)']);"
    "time.sleep(60)"
)


@pytest.fixture
def family() -> Iterator["subprocess.Popen[str]"]:
    """A process with a child that touches 60 MB; the child has said so."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "1\n"
    yield parent
    end_all(parent.pid)  # the child holds the pipe open
    parent.kill()
    parent.communicate()


def test_grandchildren_count(family: "subprocess.Popen[str]", tmp_path: Path) -> None:
    path = tmp_path / "resources.jsonl"
    sampler = ResourceSampler(path, roots={"family": family.pid}, own=os.getpid())
    sampler.tick()
    sampler.tick()
    sampler.tick(force=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 2
    for line in lines:
        assert line["by_name"]["family"] > 60_000_000
        assert line["pss_bytes"] == sum(line["by_name"].values())
        assert line["num_processes"] >= 3


def test_a_process_that_is_gone_weighs_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert pss_bytes(gone.pid) == 0
    assert not alive(gone.pid)
    assert pss_bytes(os.getpid()) > 1_000_000


def test_a_whole_family_is_ended_but_for_the_spared(family: "subprocess.Popen[str]") -> None:
    (child,) = descendants(family.pid)
    assert end_all(family.pid, spare=[child]) == []
    assert end_all(family.pid) == [child]
    deadline = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(child)
    assert alive(family.pid)
