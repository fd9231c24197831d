"""A look at a broker that leaves nothing behind: does it answer, and does it take us?"""

import pika

from infra.amqp.errors import BrokerUnreachable
from infra.amqp.io.faults import PIKA_ERRORS, describe, fatal
from infra.amqp.io.link import connection_parameters
from infra.amqp.url import address


def probe(url: str, *, timeout_s: float = 5.0) -> str:
    """Log in and out again.

    Returns:
        The broker's product and version.

    Raises:
        ConfigError: The URL is malformed.
        BrokerUnreachable: Nobody answers, or we are refused.
    """
    where = address(url)
    parameters = connection_parameters(url, name="check", heartbeat_s=20)
    parameters.connection_attempts = 1
    parameters.socket_timeout = parameters.stack_timeout = timeout_s
    parameters.blocked_connection_timeout = timeout_s
    try:
        connection = pika.BlockingConnection(parameters)
        properties = connection._impl.server_properties
        connection.close()
    except PIKA_ERRORS as error:
        refusal = fatal(error, address=where)
        if refusal is not None:
            raise refusal from error
        raise BrokerUnreachable(
            f"no broker answers at {where}: {describe(error)}",
            hint="start it, or correct [broker] url or WARREN_BROKER_URL",
        ) from error
    named = {
        key: value.decode() if isinstance(value, bytes) else str(value)
        for key, value in properties.items()
        if key in ("product", "version")
    }
    return f"{named.get('product', 'a broker')} {named.get('version', '')}".strip()
