"""Does a rollout belong to the headers that came with it? Pure."""

from infra.amqp.errors import BadMessage
from schemas.headers import Headers
from schemas.work import Rollout


def check_said(headers: Headers, rollout: Rollout) -> None:
    """The trajectory will travel under these headers: they must name this rollout.

    Raises:
        BadMessage: They name another.
    """
    said = (headers.rollout_id, headers.group, headers.index, headers.purpose)
    if said != (rollout.rollout_id, rollout.group, rollout.index, rollout.purpose):
        raise BadMessage(
            f"headers name {headers.rollout_id!r}, member {headers.index} of group "
            f"{headers.group}; the body is {rollout.rollout_id!r}"
        )
