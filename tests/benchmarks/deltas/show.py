"""The benchmark: train, encode every update, print."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.benchmarks.deltas.masters import Masters, Moments, Tensors
from tests.benchmarks.deltas.measure import Size, size, speed
from tests.benchmarks.deltas.policy_gradient import GROUP_SIZE, GROUPS, NUM_TOKENS, Learner
from tests.benchmarks.deltas.smollm2 import default_folder, load

AIMS = {1e-6: 0.005, 3e-6: 0.008, 1e-5: 0.015}
"""Learning rate -> bytes per update at most, in shares of the full weights."""
BETAS = (0.9, 0.95)
STEADY = 5
"""Last steps, over which the mean is taken."""


def show_deltas(num_steps: int, folder: Path | None) -> None:
    """Bytes per update at three learning rates, then speeds.

    Args:
        num_steps: Optimizer steps; the first are denser, as Adam's moments fill.
        folder: Where the model is, or is fetched to; None for the user's cache.
    """
    torch.manual_seed(0)
    model, tokenizer = load(folder or default_folder())
    parameters = dict(model.named_parameters())
    start = {name: each.detach().bfloat16() for name, each in parameters.items()}
    total = sum(each.numel() for each in start.values())
    print(
        f"deltas · SmolLM2-135M-Instruct, {total / 1e6:.1f} M parameters, {total * 2 / 1e6:.0f} MB "
        f"in bfloat16\n"
        f"  group-relative policy gradient on samples of its own ({GROUPS} groups of {GROUP_SIZE}, "
        f"{NUM_TOKENS} tokens, reward: share of the letter e)\n"
        f"  AdamW {BETAS}, gradient norm cut at 1.0; one stream of gradients for the float32 "
        "masters of all learning rates, dithered\n"
        "  per step: % of elements that changed, % of the full weights' bytes (mode step); each "
        "delta is applied and its digests compared"
    )
    learner, moments = Learner(model, tokenizer), Moments(parameters, BETAS)
    masters = [Masters(start, lr, seed) for seed, lr in enumerate(AIMS)]
    print(f"  {'step':>4s} {'s':>5s} {'reward':>7s} {'|g|':>7s} {'mean |u|':>9s}", end="")
    print("".join(f"{f'lr {lr:.0e}':>18s}" for lr in AIMS), flush=True)
    sizes: list[list[Size]] = []
    for step in range(1, num_steps + 1):
        started = time.monotonic()
        told = learner.backward(step)
        directions = moments.directions()
        updates = [each.advance(directions) for each in masters]
        _serve(parameters, masters[1].published)
        mean = sum(each.abs().sum().item() for each in directions.values()) / total
        if step == num_steps:
            kept = [({n: t.clone() for n, t in before.items()}, now) for before, now in updates]
        sizes.append([size(before, now) for before, now in updates])
        print(f"  {step:4d} {time.monotonic() - started:5.1f} {told.reward:7.3f}", end="")
        print(f" {told.grad_norm:7.2f} {mean:9.3f}", _row(sizes[-1]), sep="", flush=True)
    _show_steady(sizes[-STEADY:])
    _show_speeds(kept)


@torch.no_grad()
def _serve(parameters: dict[str, torch.nn.Parameter], published: Tensors) -> None:
    """Sampling and gradients are of the published weights, as a run's are."""
    for name, parameter in parameters.items():
        parameter.copy_(published[name])


def _row(sizes: Sequence[Size]) -> str:
    return "".join(f"{100 * each.changed:10.3f} {100 * each.step:7.3f}" for each in sizes)


def _show_steady(sizes: list[list[Size]]) -> None:
    print(f"  steady state, mean of the last {len(sizes)} steps, % of the full weights:")
    for (lr, aim), found in zip(AIMS.items(), zip(*sizes, strict=True), strict=True):
        share = sum(each.step for each in found) / len(found)
        changed = sum(each.changed for each in found) / len(found)
        print(
            f"    lr {lr:.0e}: {100 * share:6.3f} % ({1 / share:.0f}x smaller; {100 * changed:.3f} "
            f"% of elements changed) · aim at most {100 * aim:.1f} %: "
            f"{'met' if share <= aim else 'MISSED'}"
        )


def _show_speeds(updates: list[tuple[Tensors, Tensors]]) -> None:
    print("  the last update, GB/s of full weights per CPU second, best of 3:")
    print(f"    {'':20s}{'% bytes':>9s}{'encode':>9s}{'apply':>9s}{'digest':>9s}")
    for lr, (before, now) in zip(AIMS, updates, strict=True):
        for mode in ("step", "absolute"):
            found = speed(before, now, mode)
            print(
                f"    lr {lr:.0e} {mode:10s}{100 * found.size:9.3f}{found.encode:9.2f}"
                f"{found.apply:9.2f}{found.digest:9.2f}"
            )
    print(
        "    aims: encode 1 (compares, codes, compresses, digests), apply 2 (parses, decompresses, "
        "scatters);\n    digest is XXH3-128 of all tensors, which a reader adds to apply"
    )
