"""The table of backends and cases: as it ran, and as it is promised in the docs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance_cases.every import CASES
from conformance_cases.targets import NOT_RUN, TARGETS

from replicator.catalog import BACKENDS, CAPABILITIES

if TYPE_CHECKING:
    from collections.abc import Mapping

TITLE = "conformance: backends x cases"
# Worst first: a cell shows the worst of the backend's targets.
_RANKS = ("FAIL", "pass", "lacks", "-")


def render_run(results: Mapping[tuple[str, str], str]) -> list[str]:
    """The table of a test run, as lines."""
    letters = {name: chr(ord("A") + i) for i, name in enumerate(BACKENDS)}
    width = max(map(len, CASES))
    lines = [" " * width + "".join(f" {letter:>5}" for letter in letters.values())]
    for case in CASES:
        cells = [_cell(results, backend, case) for backend in BACKENDS]
        lines.append(f"{case:<{width}}" + "".join(f" {cell:>5}" for cell in cells))
    for backend, letter in letters.items():
        ran = sorted({t for t, _ in results if TARGETS[t].backend == backend})
        lines.append(f"{letter} = {backend}: {', '.join(ran) or 'not run here'}")
        if backend in NOT_RUN:
            lines.append(f"    not run here: {NOT_RUN[backend]}")
        for capability, reason in sorted(BACKENDS[backend].lacks.items()):
            lines.append(f"    lacks {capability}: {reason}")
    return lines


def _cell(results: Mapping[tuple[str, str], str], backend: str, case: str) -> str:
    states = {
        state
        for (target, name), state in results.items()
        if name == case and TARGETS[target].backend == backend
    }
    return next((rank for rank in _RANKS if rank in states), "-")


def render_document() -> str:
    names = list(BACKENDS)
    notes: list[str] = []  # each reason once
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
        "## Cases",
        "",
        "| case | needs | checked property |",
        "| --- | --- | --- |",
        *(
            f"| `{case.name}` | {', '.join(sorted(case.needs))} | {case.summary} |"
            for case in CASES.values()
        ),
        "",
    ]
    return "\n".join(parts)


def _heading(backend: str) -> str:
    """A backend's column, marked if all that was run is something in its place."""
    return f"`{backend}`" + (" (stand-in only)" if backend in NOT_RUN else "")


def why_not_shown(backend: str, capability: str) -> str | None:
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


def _targets_of(backend: str) -> str:
    ran = [f"`{t.name}`" for t in TARGETS.values() if t.backend == backend]
    note = NOT_RUN.get(backend)
    return ", ".join(ran) + (f"{'; ' if ran else ''}{note}" if note else "")


_INTRODUCTION = """# Conformance

Generated from the catalogue of backends and the suite in `tests/conformance/`; a test
fails if it is stale, and `python tests/conformance/write_document.py` regenerates it.

Every backend must pass every case whose capabilities it has; each capability that it
lacks has a reason. A test run ends with the table of the cases and their results.
What a column marked *stand-in only* says was seen on [something in its
place](#where-each-backend-runs), never on the real thing.
"""
