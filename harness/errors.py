"""Errors of the harness; each message is one line, and says what to do."""

from __future__ import annotations

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
    """The processes of an interleaved study do not fit into memory at once."""


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
