"""The ledger after ten million groups: memory, size in a checkpoint, time to save and to load."""

import json
import random
import time
import tracemalloc

from consumers.trainer.books.ends import End, Ends

WINDOW = 24
"""Groups in flight: how far from their order they end."""


def measure(num_groups: int) -> dict[str, float]:
    """Ends drawn at random, as often as a run that filters a third has them; MB and seconds."""
    draw = random.Random(0)
    codes, weights = list(End), (60, 33, 5, 2)
    figures: dict[str, float] = {}
    tracemalloc.start()
    ends, started = Ends(), time.perf_counter()
    for first in range(0, num_groups, WINDOW):
        numbers = list(range(first, min(first + WINDOW, num_groups)))
        draw.shuffle(numbers)
        for number, end in zip(numbers, draw.choices(codes, weights, k=len(numbers)), strict=True):
            ends.set(number, end)
    figures["us per group"] = 1e6 * (time.perf_counter() - started) / num_groups
    figures["MB in memory"] = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    started = time.perf_counter()
    text = json.dumps(ends.to_json())
    figures["s to save"] = time.perf_counter() - started
    figures["MB in a checkpoint"] = len(text) / 1e6
    started = time.perf_counter()
    assert Ends.from_json(json.loads(text)).counts == ends.counts
    figures["s to load"] = time.perf_counter() - started
    return figures
