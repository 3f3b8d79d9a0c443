"""Refuses writes to a study that another machine has taken over.

Whoever gives no sign of life is succeeded (``heartbeat``), also if it was only stopped:
a laptop that sleeps, a process that is suspended. When it goes on, it must not write
over what its successor has measured. So each write looks once more who the owner is,
as its last step before it changes a file.
"""

from __future__ import annotations

import contextlib
import pathlib
from typing import TYPE_CHECKING

from results import errors

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

_held: dict[pathlib.Path, Callable[[], bool]] = {}


@contextlib.contextmanager
def held(root: pathlib.Path, is_owner: Callable[[], bool]) -> Iterator[None]:
    """Lets writes below a study ask for its owner while the block runs."""
    key = root.absolute()
    _held[key] = is_owner
    try:
        yield
    finally:
        del _held[key]


def check(path: os.PathLike[str]) -> None:
    """Raises if what is about to be written belongs to a study that was lost."""
    whole = pathlib.Path(path).absolute()
    for root, is_owner in _held.items():
        if whole.is_relative_to(root) and not is_owner():
            raise errors.StudyLostError(root)
