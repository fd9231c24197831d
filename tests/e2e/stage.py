"""A small real run on which faults are staged, and a monitor that is asked what it sees.

private broker <- up: trainer, producer, reward, two rollout workers (simulated engine)
               <- further workers with options of their own
               <- run.py monitor --json, again and again
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from infra.amqp.local_broker import LocalBroker
from infra.amqp.node.config import server_environment
from infra.recipes.storm.prepare import prepare
from infra.runs.folder import RunFolder
from tests.e2e.weather import VARIABLE
from tests.processes import popen

ROOT = Path(__file__).resolve().parents[2]
DOOR = ROOT / "tests" / "e2e" / "weather_door.py"
NAME = "staged"
PATIENCE_S = 90.0
"""On a machine that has much else to do; what it really takes is printed, and benchmarked."""
RECIPE = """
[run]
name = "staged"
steps = 1000000
[model]
path = "{base}/model"
dtype = "float32"
[data]
train = [{{ path = "{base}/train.jsonl" }}]
[rollout]
engine = "simulated"
engine_options = {{ mean_tokens = 20, spread = 0.6, token_s = 0.04, tick_s = 0.05 }}
workers = 2
slots = 24
agent = "tests.e2e.weather:Agent"
tools = ["tests.e2e.weather:add"]
parser = "infra.recipes.storm.calls:AnyCall"
max_prompt_tokens = 16
max_response_tokens = 200
max_turn_tokens = 120
max_turns = 2
[reward]
functions = [{{ use = "tests.e2e.weather:score" }}]
[algorithm]
group_size = 4
groups_per_step = 2
max_staleness = 4.0
max_version_lag = 32
max_fruitless = 100000
[trainer]
lr = 1e-4
[checkpoint]
every = 20
[broker]
heartbeat = 5
[supervise]
restarts = 1000
window = 600
backoff = 0.2
max_backoff = 1
"""


class Stage:
    """A run in a folder, on a node of its own.

    Args:
        folder: For everything.
        node: Started.
    """

    def __init__(self, folder: Path, node: LocalBroker) -> None:
        self.folder = folder
        self.node = node
        self.runs = RunFolder(folder / "runs" / NAME)
        self.past: set[str] = set()
        """Faults, and workers, of which a monitor tells for a while when they are over."""
        self._weather = folder / "weather"
        self.recipe = folder / "staged.toml"
        self.recipe.write_text(RECIPE.format(base=prepare(folder)))
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "WARREN_BROKER_URL": node.url,
            VARIABLE: str(self._weather),
        }

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """A process of the run: `start("rollout", "--name", "x")`."""
        command, *rest = words
        log = self.folder / f"{command}-{len(list(self.folder.glob('*.log')))}.log"
        with log.open("w") as output:
            return popen(
                [sys.executable, str(DOOR), command, str(self.recipe), *rest],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def set_weather(self, word: str) -> None:
        """From now on."""
        draft = self._weather.with_suffix(".new")
        draft.write_text(word)
        draft.replace(self._weather)

    def pid(self, name: str) -> int:
        """Of a process that `up` started."""
        return int(json.loads(self.runs.fleet.read_text())[name])

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send one to such a process."""
        os.kill(self.pid(name), number)

    def set_memory_limit(self, limit: str) -> None:
        """Of the broker; a low one is an alarm."""
        node = self.node
        assert node._install is not None
        assert node.ports is not None
        tool = node._install.server.with_name("rabbitmqctl")
        subprocess.run(
            [str(tool), "set_vm_memory_high_watermark", "absolute", limit],
            env=server_environment(node.folder, node._install, node.ports),
            check=True,
            capture_output=True,
            timeout=100,
        )

    def picture(self) -> dict[str, Any]:
        """What `run.py monitor --json` tells now."""
        done = subprocess.run(
            [sys.executable, str(ROOT / "run.py"), "monitor", str(self.recipe), "--json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout, done.stderr
        picture: dict[str, Any] = json.loads(done.stdout)
        return picture

    def until(self, condition: Any, what: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Ask until something is to be seen; that picture."""
        deadline = time.monotonic() + timeout_s
        while True:
            picture = self.picture()
            if condition(picture):
                return picture
            assert time.monotonic() < deadline, f"{what}: {json.dumps(picture, indent=1)}"

    def until_named(self, fault: str, who: str = "") -> tuple[float, dict[str, str]]:
        """Seconds from now until a fault is named, and the finding."""
        began = time.monotonic()

        def named(picture: dict[str, Any]) -> list[dict[str, str]]:
            return [
                one for one in picture["findings"] if one["fault"] == fault and who in one["who"]
            ]

        picture = self.until(named, f"{fault} is not named")
        return time.monotonic() - began, named(picture)[0]

    def until_well(self) -> dict[str, Any]:
        """Nothing is wrong any more but what is past, and it goes on."""
        return self.until(
            lambda picture: (
                picture["run"]["step"] > 0
                and all(
                    one["severity"] == "notice" or {one["fault"], one["who"]} & self.past
                    for one in picture["findings"]
                )
            ),
            "it is not well again",
        )
