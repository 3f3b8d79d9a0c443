"""Counts of a gate in words: exact, with the change as a share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from results.judging.exact import exact_text, share_text
from results.records import measuring

if TYPE_CHECKING:
    from collections.abc import Iterator

    from results.judging.exact import Count
    from results.judging.gate import Gate

EXACT: Final = (
    "counts are exact: all runs of a side have the same number, so there is no spread"
    " that an interval could show; any rise is a regression"
)


def cells(count: Count) -> tuple[str, str, str, str]:
    """Returns the cells of a row: change, both sides, n, and what it means."""
    sides = count.before, count.after
    return share_text(*sides), exact_text(*sides), str(count.n), count.word


def notes_of(gate: Gate) -> Iterator[str]:
    """Says what the counts of a gate are, and which of them are not judged."""
    if any(case.count is not None for case in gate.counts):
        yield EXACT
    counts = [case.count for case in gate.noted if case.count is not None]
    differ = dict.fromkeys(count.name for count in counts if not count.is_equal)
    if differ:
        options = " ".join(f"--count {name}" for name in differ)
        yield (
            "what was counted in a step and rose or fell is exact, shown, and not"
            f" judged; {options}: a rise is a regression"
        )
    equal = dict.fromkeys(count.name for count in counts if count.name not in differ)
    if equal:
        listed = ", ".join(map(measuring.step_count_words, equal))
        n = min(count.n for count in counts)
        yield (
            f"counted in a step of each case, and equal on both sides: {listed} (n ="
            f" {n} runs of a side or more)"
        )
    reasons: dict[str, list[str]] = {}
    for case in gate.noted:
        if case.count is None:
            reasons.setdefault(case.reason, []).append(case.name)
    for reason, names in reasons.items():
        more = f" and {len(names) - 1} more" * (len(names) > 1)
        yield f"{names[0]}{more}: not compared, since {reason}"
