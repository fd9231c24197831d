"""Errors that end a role, with the exit code and what the user can do.

WarrenError               1
+-- ConfigError           2   the recipe or the command line is wrong
+-- BrokerUnreachable     3   no broker answers
+-- RoleDied              4   a child role ended
+-- DeadlinePassed        5   a wait outlived its deadline
+-- BooksDoNotBalance     6   issued credits differ from what became of them
+-- LeftWithoutHandover   7   told to leave, but the broker did not take the snapshots
+-- StepFailedTwice       8   the same step failed twice: it would fail again
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a process tells its parent."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    BROKER_UNREACHABLE = 3
    ROLE_DIED = 4
    DEADLINE = 5
    UNBALANCED = 6
    NO_HANDOVER = 7
    STEP_FAILED = 8
    INTERRUPTED = 130


class WarrenError(Exception):
    """Something that the user should read: what failed, the value, what to do."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n  -> {self.hint}" if self.hint else message


class ConfigError(WarrenError):
    """The recipe or the command line is wrong."""

    exit_code = ExitCode.USAGE


class BrokerUnreachable(WarrenError):
    """No broker answers, or it refuses us."""

    exit_code = ExitCode.BROKER_UNREACHABLE


class RoleDied(WarrenError):
    """A child role ended although the run goes on."""

    exit_code = ExitCode.ROLE_DIED


class DeadlinePassed(WarrenError):
    """A wait outlived its deadline."""

    exit_code = ExitCode.DEADLINE


class BooksDoNotBalance(WarrenError):
    """Issued credits differ from what became of them."""

    exit_code = ExitCode.UNBALANCED


class LeftWithoutHandover(WarrenError):
    """Told to leave, but the broker did not take the snapshots in time."""

    exit_code = ExitCode.NO_HANDOVER


class StepFailedTwice(WarrenError):
    """The same optimizer step failed twice: a start from the same journal fails again."""

    exit_code = ExitCode.STEP_FAILED
