"""The table of backends and capabilities, for the documents."""

from __future__ import annotations

from conformance_cases.every import CASES
from conformance_cases.targets import NOT_RUN, TARGETS

from replicator.catalog import BACKENDS, CAPABILITIES


def render_document():
    names = list(BACKENDS)
    notes = []  # each reason once
    rows = []
    for capability in CAPABILITIES:
        cells = []
        for backend in names:
            answer = "no"
            reason = BACKENDS[backend].lacks.get(capability)
            if reason is None:
                answer, reason = "yes", why_not_shown(backend, capability)
            if reason is None:
                cells.append(answer)
                continue
            if reason not in notes:
                notes.append(reason)
            cells.append(f"{answer} [{notes.index(reason) + 1}]")
        rows.append(f"| {capability} | {' | '.join(cells)} |")
    header = " | ".join(_heading(name) for name in names)
    parts = [
        _INTRODUCTION,
        f"| capability | {header} |",
        f"| --- {'| --- ' * len(names)}|",
        *rows,
        "",
        *(f"{number}. {note}." for number, note in enumerate(notes, start=1)),
        "",
        "## Capabilities",
        "",
        *(f"- **{name}**: {text}." for name, text in CAPABILITIES.items()),
        "",
        "## Where each backend runs",
        "",
        "| backend | targets in the tests |",
        "| --- | --- |",
        *(f"| `{name}` | {_targets_of(name)} |" for name in names),
        "",
        "A target is a backend, a variant of its options, and a number of replicas.",
        "",
    ]
    return "\n".join(parts)


def _heading(backend):
    """A backend's column, marked if all that was run is something in its place."""
    return f"`{backend}`" + (" (stand-in only)" if backend in NOT_RUN else "")


def why_not_shown(backend, capability):
    """Why no target runs a case that needs a capability, or None where one does."""
    reasons = []
    for target in TARGETS.values():
        for case in CASES.values():
            if target.backend != backend or capability not in case.needs:
                continue
            reason = target.why_not(case)
            if not target.is_meant(case):
                reason = f"its cases need at least {case.min_replicas} replicas"
            if reason is None:
                return None
            reasons.append(reason)
    return reasons[0] if reasons else "its cases are not run here"


def _targets_of(backend):
    ran = [f"`{t.name}`" for t in TARGETS.values() if t.backend == backend]
    note = NOT_RUN.get(backend)
    return ", ".join(ran) + (f"{'; ' if ran else ''}{note}" if note else "")


_INTRODUCTION = """# Conformance

Generated from the catalogue of backends and the suite in `tests/conformance/`; a test
fails if it is stale, and `python tests/conformance/write_document.py` regenerates it.

Every backend must pass every case whose capabilities it has; each capability that it
lacks has a reason. Cases are functions of `tests/conformance/conformance_cases/`.
`make test` asks every capability of every backend, `make test-full` runs every case on
every target. What a column marked *stand-in only* says was seen on
[something in its place](#where-each-backend-runs), never on the real thing.
"""
