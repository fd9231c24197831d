"""How long it takes until the monitor names a fault: ten of them, each staged on a real run.

From the moment at which the fault begins until a `run.py monitor --json` has printed its name. One
is asked after the other, so each figure holds a whole look (4 to 8 s of listening) beside the time
after which the fault can be told from work.
"""

import signal
import tempfile
from pathlib import Path

from infra.amqp.local_broker import LocalBroker
from tests.e2e.faults import show as line
from tests.e2e.faults import stage_all
from tests.e2e.stage import Stage

AIM_S = 15.0


def show() -> bool:
    """Print a table; whether every fault was named in time."""
    print(f"diagnosis · seconds until a fault is named (aim: {AIM_S:g} s each)", flush=True)
    slowest = 0.0
    with tempfile.TemporaryDirectory(prefix="warren-diagnosis-") as scratch:
        node = LocalBroker(Path(scratch) / "broker")
        node.start(timeout_s=120.0)
        try:
            stage = Stage(Path(scratch), node)
            up = stage.start("up")
            try:
                for name, seconds, finding in stage_all(stage):
                    slowest = max(slowest, seconds)
                    print("  " + line(name, seconds, finding), flush=True)
            finally:
                up.send_signal(signal.SIGTERM)
                up.wait(120)
        finally:
            node.kill()
    print(f"  slowest {slowest:.1f} s")
    return slowest <= AIM_S
