"""Where tables are printed: a terminal has a width, a pipe is given one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH: Final = 140
"""Of a pipe, which has none: no cell is wrapped."""


def console(**settings: Any) -> Console:
    """Returns stdout, or what ``file`` names, for tables."""
    from rich.console import Console

    settings.setdefault("width", None if sys.stdout.isatty() else PIPE_WIDTH)
    return Console(highlight=False, **settings)
