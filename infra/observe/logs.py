"""One log format for every role: `HH:MM:SS role  message`, colour on a terminal only.

Under `up` standard output is the role's log file, so the same lines are what `up` relays.
"""

import logging
import os
import sys
from typing import TextIO

LEVEL_VARIABLE = "WARREN_LOG_LEVEL"
ALERTS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}
"""Levels that are written out in a line, with their colours."""
DIM = "\x1b[2m"
RESET = "\x1b[0m"
_CHATTY = (
    *("urllib3", "asyncio", "vllm", "transformers", "filelock", "matplotlib"),
    *("botocore", "aiobotocore", "s3fs", "fsspec"),
)


class LineFormatter(logging.Formatter):
    """`12:04:31 rollout-1  message`; the level is named from WARNING upward."""

    def __init__(self, worker: str, *, colour: bool) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._worker = worker
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """One line, and below it the traceback if there is one."""
        level = record.levelname if record.levelname in ALERTS else ""
        message = record.getMessage()
        head = f"{self.formatTime(record, self.datefmt)} {self._worker}  "
        body = f"{level}  {message}" if level else message
        if record.exc_info:
            body = f"{body}\n{self.formatException(record.exc_info)}"
        if not self._colour:
            return head + body
        return f"{DIM}{head}{RESET}{ALERTS[level] + body + RESET if level else body}"


def alert_level(line: str) -> str:
    """The level that a line of ours names (`WARNING` and above), or an empty string."""
    parts = line.split("  ", 2)
    return parts[1] if len(parts) == 3 and parts[1] in ALERTS else ""


def wants_colour(stream: TextIO) -> bool:
    """A terminal, and nobody asked for plain text."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def set_up_logging(worker: str, *, stream: TextIO | None = None) -> None:
    """Send every logger to `stream` (standard output), ours from INFO, libraries from WARNING.

    `WARREN_LOG_LEVEL` changes our level.
    """
    stream = stream or sys.stdout
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(worker, colour=wants_colour(stream)))
    level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level if level in logging.getLevelNamesMapping() else "INFO")
    logging.captureWarnings(True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("pika").setLevel(logging.CRITICAL)  # its losses are ours to tell, once
