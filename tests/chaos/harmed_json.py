"""Bodies that are JSON, with a checksum that fits, and wrong all the same."""

import base64
import copy
import struct
from collections.abc import Callable
from random import Random
from typing import Any

Harm = Callable[[Any, Random], Any]

_DEEP = 500
_PATHS_TO_TOKENS = {
    "cancel_queue": ("progress",),
    "rollouts": ("progress",),
    "trajectories": ("rollout", "progress"),
    "evaluations": ("rollout", "progress"),
}
_PATHS_TO_IDS: dict[str, tuple[str, ...]] = {
    "prompts": (),
    "eval_prompts": (),
    "cancel_queue": ("task",),
    "rollouts": (),
    "trajectories": ("rollout",),
    "evaluations": ("rollout",),
}


def json_mutations(queue: str) -> dict[str, Harm]:
    """Kind -> harm, for the model that belongs on a queue."""
    kinds = dict(_ANY)
    if queue in _PATHS_TO_IDS:
        kinds |= {name: _at(_PATHS_TO_IDS[queue], harm) for name, harm in _IDS.items()}
    if queue in _PATHS_TO_TOKENS:
        kinds |= {name: _at(_PATHS_TO_TOKENS[queue], harm) for name, harm in _TOKENS.items()}
    if queue in ("prompts", "eval_prompts", "cancel_queue"):
        path = ("task",) if queue == "cancel_queue" else ()
        kinds |= {name: _at(path, harm) for name, harm in _TASKS.items()}
    if queue in ("trajectories", "evaluations"):
        kinds |= _SCORED
    return kinds | _OWN.get(queue, {})


def _at(path: tuple[str, ...], harm: Harm) -> Harm:
    def there(value: Any, rng: Random) -> Any:
        value = copy.deepcopy(value)
        inner = value
        for name in path:
            inner = inner[name]
        harm(inner, rng)
        return value

    return there


def _set(name: str, *choices: Any) -> Harm:
    """Replace a field of a table by one of some values."""

    def harm(table: Any, rng: Random) -> Any:
        table = table if isinstance(table, dict) else {}
        table[name] = rng.choice(choices)
        return table

    return harm


def nested(depth: int) -> Any:
    """A list in a list in a list ..."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _lose_field(table: Any, rng: Random) -> Any:
    """The field that each of these models has and cannot do without, or nearly all of them."""
    kept = rng.sample(sorted(table), k=rng.randrange(0, max(1, len(table) // 3)))
    return {name: table[name] for name in kept if name in ("schema_version", "rewards")}


_ANY: dict[str, Harm] = {
    "lost fields": _lose_field,
    "one field more": _set("surprise", 1, None, {"a": []}, "__class__"),
    "a later schema": _set("schema_version", 2, 0, -1, "1", 1.5, None, True, [1], 10**30),
    "numbers for names": lambda table, rng: {str(rng.random()): value for value in table.values()},
}

_IDS: dict[str, Harm] = {
    "negative group": _set("group", -1, -(2**40)),
    "huge group": _set("group", 2**49, 2**63, 2**64, 10**30, 1e300),
    "a group of another kind": _set("group", None, "seven", [], {}, 0.5, [3]),
    "negative index": _set("index", -1),
    "huge index": _set("index", 2**62, 10**40),
    "another rollout": _set("rollout_id", "77.7", "", "x" * 10_000, "\u0000"),
    "a rollout id of another kind": _set("rollout_id", 7, None, ["1.1"], {}),
    "another purpose": _set("purpose", "fun", 0, None, []),
}

_TASKS: dict[str, Harm] = {
    "cold": lambda task, rng: _set("temperature", -1, "hot", None, -1e-9)(task["sampling"], rng),
    "no top": lambda task, rng: _set("top_p", 0, -0.1, 1.1, 10**9)(task["sampling"], rng),
    "a huge seed": lambda task, rng: _set("seed", 10**30, -(10**30), 0.5)(task["sampling"], rng),
    "no budget": lambda task, rng: _set("max_response_tokens", 0, -5, 2**63)(task["budgets"], rng),
    "no turns": lambda task, rng: _set("max_turns", 0, "all", 1e99)(task["budgets"], rng),
    "a stranger speaks": lambda task, rng: _set("messages", [{"role": "god", "content": "x"}])(
        task, rng
    ),
    "messages of another kind": _set("messages", None, "hello", 7, {}, [[]], [None]),
    "deep ground truth": lambda task, _: task["reward_data"].update(ground_truth=nested(_DEEP)),
    "an agent that nobody knows": _set("agent", "nobody", "", "no.such.module:Agent"),
}


def _numbers(letter: str, *values: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}{letter}", *values)).decode()


def _count(progress: Any) -> int:
    return len(base64.b64decode(progress["tokens"]["token_ids"])) // 4


def _tokens(change: Callable[[Any, Random], None]) -> Harm:
    return lambda progress, rng: change(progress["tokens"], rng)


def _replace(name: str, *choices: Any) -> Harm:
    return _tokens(lambda tokens, rng: tokens.update({name: rng.choice(choices)}))


def _cut_array(name: str) -> Harm:
    def change(tokens: Any, _: Random) -> None:
        tokens[name] = base64.b64encode(base64.b64decode(tokens[name])[:-4]).decode()

    return _tokens(change)


def _fill(name: str, letter: str, *values: float) -> Harm:
    """Every element another value."""

    def harm(progress: Any, rng: Random) -> None:
        many = [rng.choice(values)] * _count(progress)
        progress["tokens"][name] = _numbers(letter, *many)

    return harm


def _first_version(value: Any) -> Harm:
    def change(tokens: Any, _: Random) -> None:
        tokens["versions"][0][0] = value

    return _tokens(change)


_TOKENS: dict[str, Harm] = {
    "no base64": _replace("token_ids", "!!!!", "A", "AAA=A", "\u00e4\u00e4", None, 7, {}),
    "an odd number of bytes": _replace("token_ids", "AAAAAAA=", "AA=="),
    "fewer tokens": _cut_array("token_ids"),
    "fewer logprobs": _cut_array("logprobs"),
    "nested tokens": _replace("token_ids", [[1], [2]], [[]], ["a"], [1.5, None], [2**40]),
    "negative tokens": _fill("token_ids", "i", -1, -(2**31)),
    "logprobs that are none": _fill("logprobs", "f", float("nan"), float("inf"), float("-inf")),
    "logprobs everywhere": _fill("logprobs", "f", -0.5),
    "a mask of sevens": _replace("mask", [[7, 4]], [[1, -1]], [[1, 0]], [[0, 2**62]], [[0]], 3),
    "no mask": _replace("mask", [], None, "1", {}),
    "versions below none": _first_version(-5),
    "versions beyond int32": _first_version(2**40),
    "versions of another kind": _first_version("new"),
    "versions of no length": _replace("versions", [], [[-1, 1]], [[0, 10**30]], [[0, 0]]),
    "a prompt longer than all": _set("num_prompt_tokens", 10**6, 2**63, -1, "all"),
    "turns that overlap": _set("turns", [{"kind": "prompt", "start": 1, "stop": 0}], [{}], 1),
    "negative time": lambda progress, rng: _set("generating_s", None, "long", float("nan"))(
        progress["timings"], rng
    ),
}


def _newer(value: Any, _: Random) -> Any:
    tokens = value["rollout"]["progress"]["tokens"]
    tokens["versions"] = [[v if v < 0 else 10**6, n] for v, n in tokens["versions"]]
    return value


_SCORED: dict[str, Harm] = {
    "no reward": _set("reward", None, "much", [], float("nan"), float("inf"), 10**400),
    "rewards of another kind": _set("rewards", {"a": "b"}, [1], {"a": float("nan")}, 7),
    "versions that nobody published": _newer,
}


def _outside(value: Any, _: Random) -> Any:
    progress = value["rollout"]["progress"]
    progress["tokens"]["token_ids"] = _numbers("i", *[10**6] * _count(progress))
    return value


def _unlikely(value: Any, _: Random) -> Any:
    """Every sampled token more than certain."""
    progress = value["rollout"]["progress"]
    sampled = [mask for mask, count in progress["tokens"]["mask"] for _ in range(count)]
    progress["tokens"]["logprobs"] = _numbers("f", *(5.0 * one for one in sampled))
    return value


_OWN: dict[str, dict[str, Harm]] = {
    "trajectories": {
        "a reward beyond measure": _set("reward", 1e300, -1e30, 10**20),
        "tokens outside the vocabulary": _outside,
        "more than certain": _unlikely,
    },
    "credits": {
        "another seed": _set("seed", 10**6, 10**30, "one", 0.5),
        "another dataset": _set("dataset_fingerprint", "", "0" * 64, 0, None),
        "another group size": _set("group_size", 0, -1, 10**6, 2**63, None),
        "a member twice": _set("indexes", [0, 0]),
        "members that do not exist": _set("indexes", [10**6], [-1], [10**30], [0.5], "all", 0),
        "another group": _set("group", 10**9, -1, 10**30, None),
        "another attempt": _set("attempt", 10**6, -1),
    },
    "failures": {
        "a stage of another kind": _set("stage", None, 7, []),
        "a kind that nobody knows": _set("kind", "fate", 0),
    },
}
