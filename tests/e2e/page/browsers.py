"""How Chromium is started for the page, and where the page says that it is."""

import re

CHROMIUM_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
"""No sandbox, so that it runs as root in a container; and it asks nobody for anything."""


def url_in(said: str) -> str:
    """The address in the first line of `run.py view`."""
    found = re.search(r"http://\S+/", said)
    assert found is not None, said
    return found[0]
