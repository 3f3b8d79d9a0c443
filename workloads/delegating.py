"""Base of the measuring controls: an object that is another but for some methods."""

from __future__ import annotations

from typing import Any


class Delegating:
    """Has the attributes of the object that it was made of, but for its own.

    Attributes:
      original: That object.
    """

    def __init__(self, original: Any) -> None:
        self.original = original

    def __getattr__(self, name: str) -> Any:
        if name == "original":  # not yet set while unpickling or copying
            raise AttributeError(name)
        return getattr(self.original, name)
