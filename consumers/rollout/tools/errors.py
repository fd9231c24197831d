"""Errors of tools, which become text for the model."""


class ToolError(Exception):
    """What a tool raises to tell the model what it did wrong; the message is shown as it is."""
