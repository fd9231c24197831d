"""`python -m infra.recipes.demo [--seed N] [--engine E]`: the whole demo, from nothing to a chart.

    prepare (supervised warm-up) -> run.py up demo.toml -> curve, chart, marks -> exit code

Exits with the run's code; with 1 when the run ended well and a mark was missed.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from infra.recipes.demo.chart import draw, read_curve, table
from infra.recipes.demo.marks import judge
from infra.recipes.demo.prepare import Prepared
from infra.roles.errors import ExitCode

HERE = Path(__file__).resolve().parent
RECIPE = HERE.parent / "demo.toml"
FRONT_DOOR = HERE.parents[2] / "run.py"


def main(argv: Sequence[str]) -> int:
    """Run the demo."""
    options, overrides = _parser().parse_known_args(argv)
    runs = Path(options.runs)
    code = subprocess.call(
        [
            *(sys.executable, "-m", "infra.recipes.demo.prepare"),
            *("--seed", str(options.seed), "--runs", str(runs)),
        ]
    )
    if code != 0:
        print("the starting model could not be made", file=sys.stderr)
        return code
    name = f"demo-{options.engine}-seed{options.seed}"
    code = _up(options, Prepared.of(runs, options.seed), name, overrides)
    folder = runs / name
    if not (folder / "metrics.jsonl").is_file():
        return code or ExitCode.FAILED
    return _conclude(folder, code, title=f"{options.engine}, seed {options.seed}")


def _up(
    options: argparse.Namespace, prepared: Prepared, name: str, overrides: Sequence[str]
) -> int:
    """The run, as a child. Ctrl-C reaches it too, and it decides when it ends."""
    settings = [
        f"run.name={name}",
        f"run.dir={options.runs}",
        f"run.seed={options.seed}",
        f"rollout.engine={options.engine}",
        f"model.path={prepared.model}",
        f"data.train.0.path={prepared.train}",
        f"data.eval.0.path={prepared.eval}",
        *overrides,
    ]
    command = [sys.executable, str(FRONT_DOOR), "up", str(RECIPE), *settings, "--purge"]
    child = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue


def _conclude(folder: Path, code: int, *, title: str) -> int:
    _, evals = read_curve(folder / "metrics.jsonl")
    png = folder / "reward.png"
    draw(folder / "metrics.jsonl", png, title=f"Learning to use a calculator ({title})")
    print(f"\n{table(evals)}\n\n  chart    {png}\n  summary  {folder / 'summary.json'}\n")
    if code != ExitCode.DONE:
        return code
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    marks = judge(summary)
    for mark in marks:
        print(f"  {'reached' if mark.reached else 'MISSED '}  {mark.name}  ({mark.shown})")
    missed = [mark.name for mark in marks if not mark.reached]
    if missed:
        print(f"\nthe demo missed: {', '.join(missed)}", file=sys.stderr)
        return ExitCode.FAILED
    return ExitCode.DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m infra.recipes.demo",
        description="A small model learns to use a calculator. Further arguments override the "
        "recipe, as in run.steps=60.",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--runs", default="runs", help="folder of run folders")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
