"""The sections of the report, in reading order.

A section has ``TITLE``, ``SLUG`` and ``render(view) -> Markup``. One that renders
nothing is left out of the page.
"""

from __future__ import annotations

from reports.page.page import Section
from reports.page.sections import coverage, learning, lost_time, overview, steps

SECTIONS = (
    Section("Verdict", "verdict", overview.render_verdict),
    Section("Where the time went", "lost-time", lost_time.render),
    Section("Scaling", "scaling", overview.render_scaling),
    Section("Findings", "findings", overview.render_findings),
    Section("Summary", "summary", overview.render_summary),
    Section("Backends compared", "backends", overview.render_backends),
    Section("Step times", "steps", steps.render_steps),
    Section("Variation of steps", "variation", steps.render_variation),
    Section("Time to first step and memory", "startup", steps.render_startup),
    Section("Counted in the window", "counts", steps.render_counts),
    Section("Learning", "learning", learning.render_learning),
    Section("Quality", "quality", learning.render_quality),
    Section("Coverage and failures", "coverage", coverage.render_coverage),
    Section("Machine", "machine", coverage.render_machine),
    Section("Method", "method", overview.render_method),
)
