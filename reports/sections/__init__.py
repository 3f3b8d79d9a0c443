"""The sections of the report, in reading order.

A section is a module with ``TITLE``, ``SLUG`` and ``render(view) -> Markup``.
"""

from __future__ import annotations

from reports.sections import (
    backends,
    counts,
    coverage,
    learning,
    machine,
    method,
    quality,
    scaling,
    startup,
    steps,
    summary,
    verdict,
)

SECTIONS = (
    verdict,
    summary,
    scaling,
    backends,
    steps,
    startup,
    counts,
    learning,
    quality,
    coverage,
    machine,
    method,
)
