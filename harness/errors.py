"""Errors of the harness.

    HarnessError(ValueError)      a request that cannot be carried out as written
    +-- ParseError                an argument that does not parse
    +-- PlanError                 settings that contradict each other or the machine
    +-- StudyError                a study directory that cannot be used
    +-- DifferentStudyError       a study that holds a different plan
    +-- RevisionError             a revision that cannot be measured
    +-- DoesNotFitError           processes that do not fit into memory at once
    +-- LaunchError               an engine that does not start or end processes
    +-- DoctorError               a machine that could not be checked
    +-- UnfitMachineError         a machine on which no figure would be valid; code 6
    Interrupted(BaseException)    SIGINT, SIGTERM or SIGHUP; never swallowed

Every message is one line: what was passed, why it is wrong, what is allowed, what to
do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class HarnessError(ValueError):
    """A request that cannot be carried out as written; exit code 2."""


class ParseError(HarnessError):
    """An argument that does not parse."""


class PlanError(HarnessError):
    """Settings that contradict each other, the catalogue or the machine."""


class StudyError(HarnessError):
    """A study directory that is missing, in the way, or not a study."""


class DifferentStudyError(HarnessError):
    """An existing study whose plan differs from the requested one."""


class RevisionError(HarnessError):
    """A revision that does not exist, cannot be installed, or cannot run trials."""


class DoesNotFitError(HarnessError):
    """The processes of a relay do not fit into memory at once."""


class LaunchError(HarnessError):
    """An engine that does not start processes, or does not end them."""


class Interrupted(BaseException):
    """The process was asked to stop; a BaseException, as KeyboardInterrupt is."""

    def __init__(self, signal_name: str) -> None:
        super().__init__(signal_name)
        self.signal_name = signal_name


class DoctorError(HarnessError):
    """The machine could not be checked."""


class UnfitMachineError(HarnessError):
    """A machine on which no figure would be valid; exit code 6."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, what it comes from, and so on, each once.

    An error that is raised again while another one that it caused is handled is its own
    cause.
    """
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        yield cause
        cause = cause.__cause__ or cause.__context__
