"""A role's context without a broker, its waits quick and strict."""

from pathlib import Path
from typing import Any, Literal

from infra.observe.waits import Waits
from infra.roles.context import RoleContext
from infra.runs.folder import RunFolder
from schemas.config import RunConfig
from tests.factories.contexts import role_context


def make_context(
    folder: Path,
    *,
    role: str = "rollout",
    broker: Any = None,
    stall_s: float = 0.2,
    on_deadline: Literal["warn", "stop"] = "stop",
) -> RoleContext:
    """Lines after 10 ms. `deadlines.stall` passes after 200 ms: later than the first line, however
    long that one's sleep takes, for of that at most 70 ms count."""
    config = RunConfig.model_validate(
        {
            "run": {"name": "t", "steps": 1, "dir": str(folder)},
            "model": {"path": "m"},
            "data": {"train": [{"path": "d.jsonl"}]},
            "reward": {"functions": [{"use": "exact"}]},
            "trainer": {"lr": 0.1},
            "deadlines": {"warn_after": 0.01, "stall": stall_s, "on_deadline": on_deadline},
        }
    )
    waits = Waits(warn_after_s=0.01, on_deadline=on_deadline)
    return role_context(config, broker, role=role, folder=RunFolder(folder), waits=waits)
