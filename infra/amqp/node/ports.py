"""Free loopback ports for a private node."""

import random
import socket
from dataclasses import dataclass
from itertools import pairwise

from infra.amqp.errors import LocalBrokerFailed
from infra.amqp.url import MANAGEMENT_PORT_OFFSET

_LOWEST, _HIGHEST = 10_100, 22_000  # + offset stays below the ports of outgoing connections


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a private node listens, all on 127.0.0.1."""

    amqp: int
    stream: int
    distribution: int
    epmd: int
    management: int
    prometheus: int

    def all(self) -> tuple[int, ...]:
        """Each of them."""
        return (
            self.amqp,
            self.stream,
            self.distribution,
            self.epmd,
            self.management,
            self.prometheus,
        )


def around(amqp: int) -> Ports:
    """The ports that go with an AMQP port; management lies 10000 above it, as at RabbitMQ."""
    management = amqp + MANAGEMENT_PORT_OFFSET
    return Ports(
        amqp=amqp,
        stream=amqp + 1,
        distribution=amqp + 2,
        epmd=amqp + 3,
        management=management,
        prometheus=management + 1,
    )


def is_free(port: int) -> bool:
    """Whether nothing listens on the loopback port (it can be taken a moment later)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def find_ports(source: random.Random | None = None) -> Ports:
    """Draw ports until all of them are free.

    Raises:
        LocalBrokerFailed: 200 draws found none.
    """
    source = source or random.SystemRandom()
    for _ in range(200):
        ports = around(source.randrange(_LOWEST, _HIGHEST, 4))
        assert all(a < b for a, b in pairwise(sorted(ports.all())))
        if all(is_free(port) for port in ports.all()):
            return ports
    raise LocalBrokerFailed(
        f"no free ports between {_LOWEST} and {_HIGHEST + MANAGEMENT_PORT_OFFSET}",
        hint="name a running broker in [broker] url",
    )
