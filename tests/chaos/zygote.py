"""A process that has everything imported, and forks a trainer whenever it is told to.

    one JSON line in: config, resume, log, trace, kill     -> fork -> the trainer's own `run`
    one JSON line out: pid, status                         <- its end

Only the imports are shared: the trainer that is forked loads the model, connects and dies as any
other. Forking is safe because this process has one thread and has run nothing on an accelerator:
libraries' pools and the broker's I/O thread are made after the fork, and that is checked.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

CHILD_TIMEOUT_S = 90.0
PAUSE_S = 0.02
"""Before a kill that takes the memory: what is on its way to the broker by then gets there."""
SEGMENT_BYTES = 10_000
"""Of the journal: so that every run has many segments."""


class Recorder:
    """Counts fail points reached, and ends the process at one of them.

    With `power` the machine's memory is lost too: what no fsync covered leaves the journal.

    Attributes:
        synced: How many bytes of each journal segment an fsync has covered.
    """

    def __init__(self, trace: Path, kill: dict[str, Any] | None, synced: dict[str, int]) -> None:
        self._trace = trace
        self._kill = kill
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._fsync = os.fsync
        self.synced = synced
        os.fsync = self._observed  # type: ignore[assignment]

    def __call__(self, point: str) -> None:
        with self._lock:
            self._counts[point] += 1
            kill = self._kill
            if kill is None or kill["point"] != point or self._counts[point] != kill["count"]:
                return
            if kill["power"]:
                time.sleep(PAUSE_S)
                self._lose_memory()
            self.write(killed=True)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60.0)

    def write(self, *, killed: bool) -> None:
        """Leave the counts for the test."""
        values = {"killed": killed, "counts": dict(self._counts), "synced": self.synced}
        self._trace.write_text(json.dumps(values))

    def _observed(self, fd: int) -> None:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        size = os.fstat(fd).st_size
        self._fsync(fd)
        if path.endswith(".journal"):
            self.synced[path] = size

    def _lose_memory(self) -> None:
        for path in Path(str(self._kill and self._kill["journal"])).glob("*.journal"):
            os.truncate(path, min(path.stat().st_size, self.synced.get(str(path), 0)))


EARLY = (
    "torch._dynamo",
    "transformers.models.llama.modeling_llama",
    "transformers.models.llama.tokenization_llama",
    "consumers.trainer.worker",
    "consumers.trainer.session",
    "infra.amqp.connection",
    "infra.roles.lifecycle",
)
"""What a trainer imports sooner or later."""


def warm() -> None:
    """Import all that a trainer imports; compute nothing, for that may start threads."""
    for name in EARLY:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def check_single() -> None:
    """A fork takes only the calling thread along: there must be no other."""
    tasks = list(Path("/proc/self/task").iterdir())
    assert len(tasks) == 1, f"{len(tasks)} threads before the fork"


def be_trainer(order: dict[str, Any], parent: int) -> None:
    """The forked process, to its end."""
    from consumers.trainer.worker import run
    from infra.roles.prctl import die_with
    from infra.runs import failpoints, journal
    from schemas.config import RunConfig

    die_with(parent)()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    recorder = Recorder(Path(order["trace"]), order["kill"], order["synced"])
    failpoints.listen(recorder)
    journal.SEGMENT_BYTES = SEGMENT_BYTES
    config = RunConfig.model_validate_json(Path(order["config"]).read_bytes())
    code = run(config, worker=order["worker"], resume=order["resume"])
    recorder.write(killed=False)
    os._exit(int(code))


def wait(pid: int) -> int:
    """The child's exit code; negative for a signal."""
    until = time.monotonic() + CHILD_TIMEOUT_S
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
        time.sleep(0.01)


def main() -> None:
    """Serve orders until stdin ends."""
    warm()
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        check_single()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                be_trainer(order, parent)
            finally:
                os._exit(70)
        print(json.dumps({"pid": pid, "status": wait(pid)}), flush=True)


if __name__ == "__main__":
    main()
