"""The sections of the report, in reading order.

A section is a module with ``TITLE``, ``SLUG`` and ``render(view) -> Markup``. One that
renders nothing is left out of the page.
"""

from __future__ import annotations

from reports.sections import (
    backends,
    counts,
    coverage,
    learning,
    lost_time,
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
    lost_time,
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
