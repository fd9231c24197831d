"""A tool of one's own: a typed function. Its docstring is what a model would be shown."""

from infra.recipes.demo.task import calculate


async def add(expression: str) -> str:
    """Add two numbers of at most two digits.

    Args:
        expression: For example 37+58.
    """
    return calculate(expression)
