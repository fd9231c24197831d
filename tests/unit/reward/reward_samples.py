"""Reward functions of all manners, good and bad, loaded by import path in scoring processes."""

import asyncio
import math
import os
import signal
import time
from pathlib import Path


def verl_style(data_source, solution_str, ground_truth, extra_info=None):
    """1 when the solution ends with the ground truth."""
    return solution_str.endswith(str(ground_truth))


def short_verl_style(data_source, solution_str, ground_truth):
    """No extra_info."""
    return len(solution_str)


def by_keywords(**columns):
    """Takes whatever is offered."""
    return {"score": 0.5, "offered": len(columns), "note": "text is no number", "ok": True}


def whole(rollout):
    """Sees everything."""
    return rollout.token_ids[-1]


async def waits(rollout):
    """Awaited, for 20 ms."""
    await asyncio.sleep(0.02)
    return 0.25


def command(rollout):
    """Does what the ground truth says: the tests' remote control."""
    match rollout.ground_truth:
        case float() | int() as number:
            return number
        case "raise":
            raise RuntimeError("the reward broke")
        case "shout":
            raise RuntimeError("lone \ud800" + "!" * 10_000_000)
        case "exit":
            raise SystemExit(3)
        case "hang":
            time.sleep(600)
        case "spin":
            while True:
                pass
        case "die":
            os._exit(7)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "nan":
            return math.nan
        case "inf":
            return {"score": math.inf}
        case "text":
            return "1.0"
        case "none":
            return None
        case "no score":
            return {"acc": 1.0}
        case "print":
            print("printing is harmless", flush=True)
            return 1.0
    return 0.0


def dies_once(rollout):
    """Takes the first process down, not the second."""
    marker = Path(rollout.ground_truth)
    if not marker.exists():
        marker.touch()
        os._exit(1)
    return 1.0


def huge(rollout):
    """Finite, until it is weighted."""
    return 1e308


def two_arguments(prediction, label):
    """A signature that nobody can call."""
    return 0.0


not_a_function = 3


class Judge:
    """A callable object is a function too."""

    def __call__(self, rollout):
        """The number of messages."""
        return len(rollout.messages)


judge = Judge()


def repeats(rollout):
    """Fails with what the model wrote."""
    raise ValueError(rollout.final_text)
