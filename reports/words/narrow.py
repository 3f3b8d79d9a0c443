"""Tables for narrow terminals: columns are dropped, numbers are never cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import rich.console
    import rich.table

_WIDEST = 10_000


def columns_that_fit(
    columns: Sequence[str],
    dropped_first: Sequence[str],
    make_table: Callable[[Sequence[str]], rich.table.Table],
    console: rich.console.Console,
) -> tuple[str, ...]:
    """Returns the columns that a console has room for, in their order."""
    left = list(columns)
    options = console.options.update(max_width=_WIDEST)
    for name in dropped_first:
        table = make_table(left)
        if console.measure(table, options=options).maximum <= console.width:
            break
        if name in left:
            left.remove(name)
    return tuple(left)
