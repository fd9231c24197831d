"""A user who sees everything and changes nothing."""

import base64
import hashlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

from infra.amqp.topology import RECORDING, ExchangeName, full_name

PASSWORD_VARIABLE = "WARREN_MONITORING_PASSWORD"
_SALT_BYTES = 4


@dataclass(frozen=True, slots=True)
class MonitoringUser:
    """Tagged `monitoring`: RabbitMQ's pages and API show it every queue, rate and connection.

    It may listen to broadcasts and heartbeats, in a queue of its own, and read the recording. It
    may neither put, take nor change anything of the run.
    """

    name: str
    password: str = field(repr=False)

    @classmethod
    def of(cls, run: str, password: str = "") -> "MonitoringUser":
        """The one of a run; its password is drawn when none is given."""
        return cls(f"{run}-monitoring", password or secrets.token_urlsafe(18))

    def user(self) -> dict[str, Any]:
        """As in a definitions file: a salted hash, not the password."""
        return {
            "name": self.name,
            "password_hash": password_hash(self.password),
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["monitoring"],
        }

    def permissions(self, run: str) -> dict[str, str]:
        """Regular expressions for what it may make, write to and read, in a virtual host."""
        own = f"^{re.escape(full_name(run, 'monitor'))}\\.[0-9a-f]+$"
        heard = "|".join((ExchangeName.SYNC, ExchangeName.EVENTS, RECORDING.name))
        return {
            "configure": own,
            "write": own,
            "read": f"{own}|^{re.escape(run)}\\.({heard})$",
        }


def password_hash(password: str, salt: bytes | None = None) -> str:
    """RabbitMQ's salted SHA-256: base64 of the salt and of the digest of salt and password
    (https://www.rabbitmq.com/docs/passwords)."""
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
