"""A series of programs of one seed: drawn, run, the first difference made small."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky

from fuzzing import checking, choices, comparing, drawing, source
from fuzzing.training import checking as training_checking
from fuzzing.training import drawing as training_drawing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grammar:
    """What programs are drawn from, and how each is judged."""

    programs: Callable[[Collection[str]], Any]  # Draws programs of some features.
    features: tuple[str, ...]  # All that it has.
    check: Callable[[Any], checking.Verdict]  # Runs a program both ways.
    render: Callable[[Any], str]  # Shows a program.


STEPS = Grammar(
    programs=drawing.programs,
    features=choices.FEATURES,
    check=checking.check,
    render=source.render,
)
TRAININGS = Grammar(
    programs=training_drawing.trainings,
    features=training_drawing.FEATURES,
    check=training_checking.check,
    render=training_checking.render,
)


@dataclasses.dataclass(kw_only=True)
class Series:
    # How many programs ended how, up to the first difference of each seed.
    verdicts: collections.Counter[checking.Verdict] = dataclasses.field(
        default_factory=collections.Counter
    )
    # Small programs on which the library and the interpreter disagree, as Python, with
    # what they disagree about.
    differences: list[str] = dataclasses.field(default_factory=list)

    def add(self, other):
        self.verdicts.update(other.verdicts)
        self.differences += other.differences

    def __str__(self):
        counts = [f"{self.verdicts[v]} {v.value}" for v in checking.Verdict]
        num_drawn = self.verdicts.total() + len(self.differences)
        return (
            f"{num_drawn} programs drawn: {', '.join(counts)}; "
            f"{len(self.differences)} found a difference"
        )


def run_series(
    first_seed, num_programs, *, grammar=STEPS, is_shrunk=True, features=None
):
    """Draws programs and compares the library with the interpreter on each."""
    found = Series()
    last = []

    @seed(first_seed)
    @settings(
        max_examples=num_programs,
        derandomize=False,
        database=None,
        deadline=None,
        print_blob=False,
        phases=[Phase.generate, *([Phase.shrink] if is_shrunk else [])],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(grammar.programs(grammar.features if features is None else features))
    def check(program):
        try:
            verdict = grammar.check(program)
        except comparing.DifferenceError as error:
            # Hypothesis runs the smallest one last.
            last.append((program, error))
            raise
        if not last:
            found.verdicts[verdict] += 1

    try:
        check()
    except (comparing.DifferenceError, Flaky) as error:
        program, difference = last[-1]
        often = ", not every time" if isinstance(error, Flaky) else ""
        number = found.verdicts.total() + 1
        found.differences.append(
            f"seed {first_seed}, program {number}{often}: {difference}\n"
            f"{grammar.render(program)}\n"
        )
    return found
