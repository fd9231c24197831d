"""A trainer's lines, told to a tracker in a process of its own: `python -m ... NAME FIRST LAST`.

Packages read their environment when they are imported, and leave processes and exit hooks behind.
"""

import sys
from pathlib import Path

from infra.observe.tracking.recorder import Recorder
from infra.observe.tracking.tracker import check_trackers
from infra.runs.folder import RunFolder
from tests.unit.infra.observe.tracking.tracked import recipe


def main(name: str, first: int, last: int) -> None:
    """Steps `first` to `last` of the run in the working folder, and an evaluation."""
    config = recipe(Path.cwd(), name)
    sys.stdout.write("\n".join(check_trackers(config)) + "\n")
    folder = RunFolder.of(config)
    folder.root.mkdir(exist_ok=True)
    recorder = Recorder.open(config, folder, run_id="abcdef0123456789", exporter=None)
    for step in range(first, last + 1):
        line = {"step": step, "version": step, "train/loss": 1 / step, "ledger/balanced": True}
        recorder.append("step", line | {"train/kl": float("nan"), "note": "no number"})
    recorder.append("eval", {"step": last, "version": last, "eval/reward": last / 8})
    recorder.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
