"""What a process of the harness ends with; scripts and CI branch on it."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What ``main`` returns and the process ends with.

    1 and 3 belong to verdicts (regression, inconclusive) and are never used for
    anything else.
    """

    OK = 0
    """Every trial of the plan is measured and sane, and N replicas match one as far as
    was planned; also of a sweep beside load, whose page says what that did; a gate
    passes."""

    REGRESSION = 1
    """A gate found a regression."""

    USAGE = 2
    """The request cannot be carried out as written; nothing was started."""

    INCONCLUSIVE = 3
    """The interval of a gate holds both pass and regress, or the sides are not
    comparable."""

    SOME_TRIALS_FAILED = 4
    """At least one trial is ok and at least one is not, which includes replicas that do
    not match one, or a match that gave no answer; or, of ``verify``, a figure is not
    what the raw observations say, or has none."""

    NOTHING_MEASURED = 5
    """No trial is ok: there is no result; or ``verify`` has nothing to recompute
    from."""

    UNFIT = 6
    """The machine cannot be measured on, or disturbed a gate too much for any
    verdict."""

    INTERNAL_FAULT = 70
    """An internal error (EX_SOFTWARE); records written before it are kept."""

    INTERRUPTED = 130
    """Interrupted by a signal; run the same command to resume."""
