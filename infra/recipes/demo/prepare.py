"""What the demo starts from: `python -m infra.recipes.demo.prepare --seed 0`

    runs/demo-base-seed0/  model/          Hugging Face folder, float32
                           train.jsonl     9,500 prompts
                           eval.jsonl      500 other prompts
                           prepared.json   how it was made

Made once for each seed, in some ten seconds of one core; made again when the code that makes it
has changed.
"""

import argparse
import hashlib
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.recipes.demo.task import Problem, split

logger = logging.getLogger(__name__)

_MADE_BY = ("task.py", "tokenizer.py", "sampling.py", "warmup.py", "prepare.py")


@dataclass(frozen=True, slots=True)
class Prepared:
    """Where things lie."""

    folder: Path

    @classmethod
    def of(cls, runs: Path, seed: int) -> "Prepared":
        """The folder of a seed."""
        return cls(runs / f"demo-base-seed{seed}")

    @property
    def model(self) -> Path:
        """The starting model."""
        return self.folder / "model"

    @property
    def train(self) -> Path:
        """Prompts to train on."""
        return self.folder / "train.jsonl"

    @property
    def eval(self) -> Path:
        """Held-out prompts."""
        return self.folder / "eval.jsonl"

    @property
    def record(self) -> Path:
        """How it was made; written last."""
        return self.folder / "prepared.json"

    def facts(self) -> dict[str, Any]:
        """What `record` holds; empty where there is none."""
        try:
            facts = json.loads(self.record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}


def prepare(runs: Path, *, seed: int) -> Prepared:
    """Make the model and the datasets, or find them made.

    Raises:
        WarmupFailed: The model did not learn what it should know at the start.
        OSError: The folder cannot be written.
    """
    prepared = Prepared.of(runs, seed)
    made_by = _made_by()
    if prepared.facts().get("made_by") == made_by:
        return prepared
    draft = Prepared(runs / f".demo-base-seed{seed}-{os.getpid()}")
    shutil.rmtree(draft.folder, ignore_errors=True)
    draft.folder.mkdir(parents=True)
    try:
        facts = _make(draft, seed)
        draft.record.write_text(json.dumps({"made_by": made_by, **facts}, indent=2) + "\n")
        shutil.rmtree(prepared.folder, ignore_errors=True)
        draft.folder.rename(prepared.folder)
    finally:
        shutil.rmtree(draft.folder, ignore_errors=True)
    return prepared


def _make(draft: Prepared, seed: int) -> dict[str, Any]:
    import torch
    from transformers.utils import logging as transformers_logging

    from infra.recipes.demo.tokenizer import save_tokenizer
    from infra.recipes.demo.warmup import build_model, warm_up

    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    started = time.monotonic()
    train, held_out = split()
    model = build_model(seed)
    warmed = warm_up(model, train, seed=seed)
    model.eval()
    model.save_pretrained(draft.model)
    save_tokenizer(draft.model)
    _write_rows(draft.train, train)
    _write_rows(draft.eval, held_out)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {
        "seed": seed,
        "parameters": parameters,
        **asdict(warmed),
        "seconds": round(time.monotonic() - started, 1),
    }


def _write_rows(path: Path, problems: Sequence[Problem]) -> None:
    rows = (
        {"prompt": problem.prompt, "ground_truth": problem.answer, "data_source": "demo"}
        for problem in problems
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _made_by() -> str:
    here = Path(__file__).parent
    return hashlib.sha256(b"".join((here / name).read_bytes() for name in _MADE_BY)).hexdigest()


def main(argv: Sequence[str]) -> int:
    """Prepare from the command line."""
    parser = argparse.ArgumentParser(prog="python -m infra.recipes.demo.prepare")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of run folders")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    prepared = prepare(options.runs, seed=options.seed)
    facts = prepared.facts()
    print(
        f"starting model: {facts['parameters']:,} parameters, solves {facts['solved']:.1%} "
        f"and asks the calculator in {facts['called']:.1%} ({prepared.folder})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
