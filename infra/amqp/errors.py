"""What the broker, or the way to it, can refuse. Errors of pika never leave this room.

BrokerUnreachable (exit code 3)
+-- BrokerRefused         the credentials, the virtual host or a permission
+-- BrokerNotInstalled    no RabbitMQ on this machine, and none could be fetched
+-- LocalBrokerFailed     the private node did not start
WarrenError
+-- TopologyMismatch      a queue of this name exists with other arguments
+-- MessageTooLarge       a data failure: the body exceeds what brokers take
+-- Unroutable            no queue listens to the routing key
+-- PublishTimeout        not confirmed within the given time
+-- ResourceLocked        another connection owns the exclusive queue
+-- QueueMissing          no such queue
+-- BadMessage            the body or the envelope of a received message is not valid
+-- BrokerClosed          used after close()
+-- ManagementUnreachable the HTTP API does not answer
"""

from infra.roles.errors import BrokerUnreachable, WarrenError

__all__ = ["BrokerUnreachable"]


class BrokerRefused(BrokerUnreachable):
    """The broker answers, and will not have us."""


class BrokerNotInstalled(BrokerUnreachable):
    """No RabbitMQ was found here, and none could be fetched."""


class LocalBrokerFailed(BrokerUnreachable):
    """The private node did not start, or its folder is in use."""


class TopologyMismatch(WarrenError):
    """An object of this name exists at the broker with other arguments."""


class MessageTooLarge(WarrenError):
    """The body exceeds what the broker takes: a failure of the data, not of the broker."""


class Unroutable(WarrenError):
    """The broker has no queue for this routing key."""


class PublishTimeout(WarrenError):
    """The broker did not confirm in time. It may still have taken the message."""


class ResourceLocked(WarrenError):
    """Another connection holds the exclusive queue."""


class QueueMissing(WarrenError):
    """The queue does not exist."""


class BrokerClosed(WarrenError):
    """The broker object was closed."""


class ManagementUnreachable(WarrenError):
    """The management HTTP API does not answer as expected."""


class BadMessage(WarrenError):
    """A received message that must be given up.

    Attributes:
        reason: One line, without the body.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
