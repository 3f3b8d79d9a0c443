"""The options that describe a sweep, shared by the verbs that plan one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.study_file import with_those_of_file
from harness.planning import defaults
from results.records import limits

if TYPE_CHECKING:
    from collections.abc import Callable


class _FiniteRange(click.FloatRange):
    """A range that excludes NaN, which passes every comparison with a bound."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Returns the number, or fails with one line."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class CommaSeparated(click.ParamType):  # type: ignore[type-arg]  # not in click 8.1
    """A list with commas on the command line; in a study file also an array."""

    def __init__(self, *, is_of_counts: bool = False) -> None:
        self.is_of_counts = is_of_counts
        self.name = "counts" if is_of_counts else "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Returns the text; a study file can have a single integer."""
        del param, ctx
        return str(value)


SECONDS = _FiniteRange(min=0, min_open=True, max=limits.MAX_SEC)
"""The allowed time limits of a trial."""
MINUTES = _FiniteRange(min=0, min_open=True, max=limits.MAX_SEC)
"""The allowed times of a measurement."""

runs_dir_option = click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    default=defaults.RUNS_DIR,
    show_default=True,
    help="Directory of the studies.",
)
data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Directory of TFDS data sets.  [default: TFDS_DATA_DIR, or that of TFDS]",
)
json_option = click.option(
    "--json", "is_json", is_flag=True, help="Print data as JSON on stdout."
)


def request_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a verb with the options of a sweep."""
    for option in reversed(
        (
            click.option("--workload", required=True, help="The workload to measure."),
            click.option(
                "--backends",
                type=CommaSeparated(),
                metavar="NAMES",
                help="Comma-separated names."
                f"  [default: {','.join(defaults.BACKENDS)}]",
            ),
            click.option(
                "--replicas",
                type=CommaSeparated(is_of_counts=True),
                metavar="COUNTS",
                help="Lists and ranges: 1,2,4 or 1..8 or 1..16x2.  [default: powers of"
                " two up to the cores or GPUs, at most 8]",
            ),
            click.option(
                "--mode",
                "modes",
                type=CommaSeparated(),
                metavar="MODES",
                default=",".join(defaults.MODES),
                show_default=True,
                help="Scaling modes, comma-separated.",
            ),
            click.option(
                "--repeats",
                type=click.IntRange(1, limits.MAX_SEED),
                help="Repetitions of each case, in separate processes; the generations"
                f" of a relay.  [default: {defaults.GENERATIONS} in a relay,"
                f" {defaults.REPEATS} in sequence]",
            ),
            click.option(
                "--order",
                type=click.Choice(["relay", "sequential"]),
                help="Whether all cases are alive at once and take turns, or run one"
                " after the other.  [default: relay on CPUs, if they fit into memory]",
            ),
            click.option(
                "--minutes",
                type=MINUTES,
                metavar="MINUTES",
                help="Time for a relay, start-up included."
                f"  [default: {defaults.MINUTES:g}; with --target"
                f" {defaults.MINUTES_TO_TARGET:g}]",
            ),
            click.option(
                "--rounds",
                "max_rounds",
                type=click.IntRange(1, limits.MAX_STEPS),
                help="The most rounds of each generation of a relay."
                f"  [default: {defaults.MAX_ROUNDS}]",
            ),
            click.option(
                "--target",
                metavar="PERCENT",
                help="Continue until the interval of the primary contrast is at most"
                " this wide to either side, such as 3%; needs 5 generations or more.",
            ),
            click.option(
                "--efficiency-target",
                metavar="PERCENT",
                default=f"{defaults.EFFICIENCY_TARGET:.0%}",
                show_default=True,
                help="Parallel efficiency that the verdict tests.",
            ),
            click.option(
                "--allocator",
                type=click.Choice(["default", "keep"]),
                help="Whether glibc keeps freed memory.  [default: keep]",
            ),
            click.option(
                "--controls",
                type=CommaSeparated(),
                metavar="NAMES",
                default="none",
                show_default=True,
                help="Cases of the relay that show where time is lost: nosync, solo,"
                " synthetic, input_only, no_update, comma-separated, or all, or none.",
            ),
            click.option(
                "--match/--no-match",
                "is_matched",
                default=True,
                show_default=True,
                help="Before a number counts, match the first steps of N replicas with"
                " those of one.",
            ),
            click.option(
                "--preset", help="Size of the workload.  [default: the workload's]"
            ),
            click.option(
                "--data",
                help="Data set: digits, synthetic, a TFDS name, or folder:PATH."
                "  [default: the preset's]",
            ),
            data_dir_option,
            click.option(
                "--per-replica-batch-size",
                type=click.IntRange(1, limits.MAX_BATCH_SIZE),
                help="Examples per replica and step; constant in weak scaling."
                "  [default: the preset's]",
            ),
            click.option(
                "--global-batch-size",
                type=click.IntRange(1, limits.MAX_BATCH_SIZE),
                help="Examples of all replicas per step; constant in strong scaling."
                "  [default: the baseline's]",
            ),
            click.option(
                "--num-warmup-steps",
                type=click.IntRange(1, limits.MAX_STEPS),
                help="Steps before the measured window, the first one included."
                "  [default: the preset's]",
            ),
            click.option(
                "--num-measured-steps",
                type=click.IntRange(1, limits.MAX_STEPS),
                help="Steps in the measured window.  [default: the preset's]",
            ),
            click.option(
                "--steps-per-sync",
                type=click.IntRange(1, limits.MAX_STEPS),
                help="Steps that are started before their losses are read, so that a"
                " GPU need not wait for the host; they share their time."
                f"  [default: {defaults.STEPS_PER_SYNC['cpu']} on CPUs,"
                f" {defaults.STEPS_PER_SYNC['gpu']} on GPUs]",
            ),
            click.option(
                "--device",
                type=click.Choice(["cpu", "gpu"]),
                default=defaults.DEVICE,
                show_default=True,
                help="Devices of the replicas.",
            ),
            click.option(
                "--evaluate/--no-evaluate",
                "is_evaluated",
                default=None,
                help="Measure held-out quality.  [default: yes, except for synthetic"
                " data]",
            ),
            click.option(
                "--budget",
                metavar="AMOUNT",
                help="Training budget of each quality run: 60s, 10min, 500steps,"
                " 20000examples, or none.  [default: the preset's, on the first"
                " backend]",
            ),
            click.option(
                "--evaluations",
                "num_evaluations",
                type=click.IntRange(1, limits.MAX_EVALUATIONS),
                help="Number of evaluations in a quality run.  [default: the preset's]",
            ),
            click.option(
                "--quality-repeats",
                type=click.IntRange(1, limits.MAX_SEED),
                default=defaults.QUALITY_REPEATS,
                show_default=True,
                help="Quality runs of each case, with different seeds.",
            ),
            click.option(
                "--option",
                "options",
                multiple=True,
                callback=with_those_of_file,
                metavar="KEY=VALUE",
                help="An option of the workload; can be repeated.",
            ),
            click.option(
                "--seed",
                type=click.IntRange(0, limits.MAX_SEED),
                default=defaults.SEED,
                show_default=True,
                help="Seed of the sweep.",
            ),
            click.option(
                "--timeout",
                "timeout_sec",
                type=SECONDS,
                default=defaults.TIMEOUT_SEC,
                show_default=True,
                metavar="SECONDS",
                help="Time limit of one trial.",
            ),
            click.option(
                "--study",
                metavar="NAME",
                help="Directory below --runs-dir.  [default: derived from the sweep,"
                " so that the same command resumes it]",
            ),
            runs_dir_option,
            json_option,
        )
    ):
        function = option(function)
    return function


def without_options(*names: str) -> Callable[..., Any]:
    """Returns a decorator that removes options of ``request_options`` by parameter."""

    def remove(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters: list[click.Parameter] = function.__click_params__  # type: ignore[attr-defined]  # click adds it
        assert set(names) <= {parameter.name for parameter in parameters}
        parameters[:] = [p for p in parameters if p.name not in names]
        return function

    return remove
