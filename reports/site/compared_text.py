"""A comparison of two studies as text, Markdown and JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Final

from reports.site import comparison
from reports.words import formats, ratio_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from reports.site.comparison import Compared

MOST_DIFFERENCES: Final = 14
"""Of the Markdown, which is to fit a pull request."""


def as_text(compared: Compared) -> str:
    """Writes a comparison for a terminal."""
    lines = [f"A: {compared.first.plan.study}", f"B: {compared.second.plan.study}", ""]
    lines += [comparison.headline(compared), "", "what differs (A / B)"]
    lines += [f"  {found.group}: {found.text}" for found in compared.differences]
    if not compared.differences:
        lines.append("  nothing that is recorded")
    lines += [*_only(compared), "", ratio_table.comparison_text(compared.table)]
    return "\n".join(lines)


def as_markdown(compared: Compared) -> str:
    """Writes a comparison for a pull request."""
    first, second = (
        formats.escaped(of.plan.study) for of in (compared.first, compared.second)
    )
    lines = [
        f"### A {first}, B {second}",
        "",
        f"**{formats.escaped(comparison.headline(compared))}**",
        "",
    ]
    shown = compared.differences[:MOST_DIFFERENCES]
    if shown:
        rows = [(of.group, of.name, of.first, of.second) for of in shown]
        lines += [*formats.markdown_table(("differs", "what", "A", "B"), rows), ""]
    num_more = len(compared.differences) - len(shown)
    if num_more:
        lines += [f"{num_more} more differences are in the page.", ""]
    lines += [f"- {formats.escaped(text)}" for text in _only(compared)]
    lines.append(ratio_table.comparison_markdown(compared.table))
    return "\n".join(lines)


def as_json(compared: Compared) -> str:
    """Writes a comparison as data."""
    return json.dumps(
        {
            "headline": comparison.headline(compared),
            "is_comparable": not compared.reasons,
            "reasons": list(compared.reasons),
            "differs": [dataclasses.asdict(of) for of in compared.differences],
            "only_first": list(compared.only_first),
            "only_second": list(compared.only_second),
            "comparison": json.loads(ratio_table.comparison_json(compared.table)),
        },
        indent=2,
    )


def _only(compared: Compared) -> list[str]:
    sides = (("A", compared.only_first), ("B", compared.only_second))
    return [f"only in {side}: {'; '.join(cases)}" for side, cases in sides if cases]


WRITERS: Final[dict[str, Callable[[Compared], str]]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": as_json,
}
