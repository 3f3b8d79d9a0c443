"""The sections of the report, in reading order.

A section has ``TITLE``, ``SLUG`` and ``render(view) -> Markup``. One that renders
nothing is left out of the page.
"""

from __future__ import annotations

from reports.page.page import Section
from reports.page.sections import coverage, learning, overview, steps

SECTIONS = (
    Section("Verdict", "verdict", overview.render_verdict),
    Section("All cases", "cases", overview.render_sizes),
    Section("Where the time goes", "lost-time", overview.render_time),
    Section("Steps and memory", "steps", steps.render_steps),
    Section("Counted", "counts", steps.render_counts),
    Section("Learning", "learning", learning.render_learning),
    Section("Quality", "quality", learning.render_quality),
    Section("Trials", "trials", coverage.render_coverage),
    Section("Machine", "machine", coverage.render_machine),
    Section("Limits and method", "method", overview.render_method),
)
