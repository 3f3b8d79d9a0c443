"""Errors of a program of the user's, as they are recorded; each says what to change."""

from __future__ import annotations

from typing import Final


class CommandError(RuntimeError):
    """The program did not do what was asked."""


class ReadingError(ValueError):
    """Output that says nothing clear; its detail shows the place in lines."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


OWN_ERRORS: Final = (CommandError.__name__, ReadingError.__name__)
"""By which a failure is known to be that of the command, and not of the machine."""
