"""Rewriters make a step faster; one that raises an error is left out of the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

RESAMPLED = "convolutions of the smaller image"
PRODUCTS = "convolutions as products of matrices"


class RewriterError(Exception):
    """A rewriter raised an error, and may have left a graph half rewritten."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Rewriters:
    """Runs the rewriters of one step.

    Attributes:
      notes: By rewriter that was left out, a line for ``explain()``.
    """

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}

    def attempt(
        self, name: str, rewrite: Callable[[], Any], without: Any = None
    ) -> Any:
        """Returns what a rewriter does, or ``without`` where it has been left out."""
        if name in self.notes:
            return without
        try:
            return rewrite()
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            self.notes[name] = (
                f"without {name}, which failed in this step ({what}): results are the "
                "same, and the step may be slower; please report this"
            )
            raise RewriterError(name) from error

    def run(self, build: Callable[[], Any]) -> Any:
        """Returns what ``build`` does, again until no rewriter raises an error."""
        try:
            return build()
        except RewriterError:
            return self.run(build)
