"""Policies of a run: what may be changed while it lives, and what keeps other policies away.

Only one policy applies to a queue. With these, a policy of the broker's for all queues (a message
TTL, a length limit) does not, unless it is given a higher priority.

No guarantee depends on a policy. What one depends on is an argument of the queue, and an argument
goes first (`overflow`, `dead-letter-exchange`) or is the limit below which a policy may go
(`delivery-limit`, `max-length-bytes`, `max-age`, `consumer-timeout`).
"""

import re
from collections.abc import Iterable
from typing import Any

from infra.amqp.topology import (
    DELIVERY_LIMIT,
    QUEUES,
    RECORDING,
    RECORDING_AGE,
    RECORDING_BYTES,
    ExchangeName,
    full_name,
)

PRIORITY = 10


def policies(run: str) -> dict[str, dict[str, Any]]:
    """Name -> policy, without its virtual host."""
    returning = [queue.name for queue in QUEUES if queue.dead_letters]
    final = [queue.name for queue in QUEUES if not queue.dead_letters]
    return {
        full_name(run, "recording"): _policy(
            run,
            [RECORDING.name],
            {"max-length-bytes": RECORDING_BYTES, "max-age": RECORDING_AGE},
        ),
        full_name(run, "work"): _policy(
            run,
            returning,
            {
                "delivery-limit": DELIVERY_LIMIT,
                "dead-letter-exchange": full_name(run, ExchangeName.DEAD),
                "dead-letter-strategy": "at-least-once",
                "overflow": "reject-publish",
            },
        ),
        full_name(run, "dead"): _policy(run, final, {"overflow": "reject-publish"}),
    }


def _policy(run: str, queues: Iterable[str], definition: dict[str, Any]) -> dict[str, Any]:
    names = "|".join(queues)
    return {
        "pattern": f"^{re.escape(run)}\\.({names})$",
        "apply-to": "queues",
        "definition": definition,
        "priority": PRIORITY,
    }
