"""`python -m infra.recipes.storm [--runs DIR] [options of run.py storm]`

prepare -> run.py storm infra/recipes/storm.toml ... -> its exit code
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from infra.recipes.storm.prepare import prepare

HERE = Path(__file__).resolve().parent
RECIPE = HERE.parent / "storm.toml"
FRONT_DOOR = HERE.parents[2] / "run.py"


def main(argv: Sequence[str]) -> int:
    """Prepare, then storm."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.recipes.storm",
        description="A run of many short rollouts, and everything that production does to one. "
        "Further arguments go to `run.py storm`, as in --minutes 3 --seed 1.",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of run folders")
    options, further = parser.parse_known_args(argv)
    folder = prepare(options.runs)
    settings = [
        f"run.dir={options.runs}",
        f"model.path={folder / 'model'}",
        f"data.train.0.path={folder / 'train.jsonl'}",
    ]
    command = [sys.executable, str(FRONT_DOOR), "storm", str(RECIPE), *settings, *further]
    child = subprocess.Popen(command)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:  # it reaches the child too, which decides when it ends
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
