"""The sections of the report, in reading order.

A section is a module with ``TITLE``, ``SLUG`` and ``render(view) -> Markup``. One that
renders nothing is left out of the page.
"""

from __future__ import annotations

from reports.page.sections import (
    backends,
    counts,
    coverage,
    findings,
    learning,
    lost_time,
    machine,
    method,
    quality,
    scaling,
    startup,
    steps,
    summary,
    variation,
    verdict,
)

SECTIONS = (
    verdict,
    lost_time,
    scaling,
    findings,
    summary,
    backends,
    steps,
    variation,
    startup,
    counts,
    learning,
    quality,
    coverage,
    machine,
    method,
)
