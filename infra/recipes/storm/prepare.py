"""What the storm starts from: `python -m infra.recipes.storm.prepare`

    runs/storm-base/  model/        Hugging Face folder, 15,000 random float32 weights
                      train.jsonl   2,000 prompts, written last

Made once, in seconds; nothing is downloaded.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from infra.recipes.demo.task import split

NUM_PROMPTS = 2000
NAME = "storm-base"


def prepare(runs: Path) -> Path:
    """Make the model and the dataset in `<runs>/storm-base`, or find them made.

    Raises:
        OSError: The folder cannot be written.
    """
    folder = runs / NAME
    if (folder / "train.jsonl").is_file():
        return folder
    draft = runs / f".{NAME}-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        _save_model(draft / "model")
        rows = [{"prompt": problem.prompt, "data_source": "storm"} for problem in split()[0]]
        lines = [json.dumps(row) + "\n" for row in rows[:NUM_PROMPTS]]
        (draft / "train.jsonl").write_text("".join(lines), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _save_model(folder: Path) -> None:
    from transformers.utils import logging as transformers_logging

    from infra.recipes.demo.tokenizer import save_tokenizer
    from infra.recipes.demo.warmup import build_model

    transformers_logging.disable_progress_bar()
    model = build_model(0, hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2)
    model.save_pretrained(folder)
    save_tokenizer(folder)


def main(argv: Sequence[str]) -> int:
    """Prepare from the command line."""
    parser = argparse.ArgumentParser(prog="python -m infra.recipes.storm.prepare")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of run folders")
    options = parser.parse_args(argv)
    sys.stdout.write(f"model and prompts: {prepare(options.runs)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
