"""A run's part of a broker, as RabbitMQ's definitions files say it."""

from typing import Any

from infra.amqp.definitions.policies import policies
from infra.amqp.definitions.users import MonitoringUser
from infra.amqp.topology import (
    EXCHANGES,
    QUEUES,
    RECORDING,
    WORK_KEYS,
    ExchangeName,
    full_name,
    queue_arguments,
)


def administration(run: str, *, vhost: str, monitoring: MonitoringUser) -> dict[str, Any]:
    """Policies and the monitoring user: what roles cannot make for themselves."""
    permissions = {"user": monitoring.name, "vhost": vhost, **monitoring.permissions(run)}
    return {
        "users": [monitoring.user()],
        "permissions": [permissions],
        "policies": [
            {"vhost": vhost, "name": name, **policy} for name, policy in policies(run).items()
        ],
    }


def definitions(run: str, *, vhost: str, monitoring: MonitoringUser) -> dict[str, Any]:
    """All that a run has at its broker, to be imported before the run or beside it.

    The roles find what they would have declared: names and arguments are the same.
    """
    return {
        "vhosts": [{"name": vhost}],
        **administration(run, vhost=vhost, monitoring=monitoring),
        "exchanges": [
            {
                "name": full_name(run, exchange.name),
                "vhost": vhost,
                "type": exchange.kind,
                "durable": exchange.durable,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
            for exchange in EXCHANGES
        ],
        "queues": [
            {
                "name": full_name(run, queue.name),
                "vhost": vhost,
                "durable": True,
                "auto_delete": False,
                "arguments": queue_arguments(queue, run=run),
            }
            for queue in (*QUEUES, RECORDING)
        ],
        "bindings": [
            *(
                _binding(run, vhost, queue.exchange, queue.name, "queue", queue.routing_key)
                for queue in (*QUEUES, RECORDING)
            ),
            *(
                _binding(run, vhost, ExchangeName.WORK, ExchangeName.RECORDING, "exchange", key)
                for key in WORK_KEYS.values()
            ),
        ],
    }


def _binding(run: str, vhost: str, source: str, goal: str, kind: str, key: str) -> dict[str, Any]:
    return {
        "source": full_name(run, source),
        "vhost": vhost,
        "destination": full_name(run, goal),
        "destination_type": kind,
        "routing_key": key,
        "arguments": {},
    }
