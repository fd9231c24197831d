"""What can go wrong between text and tokens."""

from infra.roles.errors import WarrenError


class TemplateRefused(WarrenError):
    """The chat template raised on these messages."""
