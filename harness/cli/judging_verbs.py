"""The options of the verbs of judging; what they do is imported when one runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness import catalog
from harness.cli.parsing import make_request
from harness.cli.sweep_options import (
    MINUTES,
    json_option,
    request_options,
    runs_dir_option,
    without_options,
)
from harness.planning import defaults
from results.records import limits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_GATE_FORMATS = ("text", "junit", "github", "markdown", "json")
_COMPARE_FORMATS = ("text", "json", "markdown")


def _names_of_gate() -> str:
    """Says what a gate judges: speed, memory, and what each workload learns."""
    learned = "; ".join(
        f"{', '.join(catalog.judged_metrics(info))} ({name})"
        for name, info in catalog.WORKLOADS.items()
    )
    return f"throughput, time_to_first_step, peak_memory; or what is learned: {learned}"


_delta_option = click.option(
    "--delta",
    metavar="PERCENT",
    default="5%",
    show_default=True,
    help="The slowdown that matters.",
)
_alpha_option = click.option(
    "--alpha",
    metavar="PERCENT",
    default="5%",
    show_default=True,
    help="The accepted probability of passing a slowdown of exactly --delta.",
)
_metric_option = click.option(
    "--metric",
    metavar="NAME",
    default="throughput",
    show_default=True,
    help="throughput, time_to_first_step or peak_memory.",
)
_different_option = click.option(
    "--allow-different",
    "is_different_allowed",
    is_flag=True,
    help="Show studies of different machines, workload versions or placements; such a"
    " result never passes.",
)


def _format_option(formats: tuple[str, ...]) -> Callable[..., Any]:
    return click.option(
        "--format",
        "form",
        type=click.Choice(formats),
        default="text",
        show_default=True,
        help="How the result is written to stdout.",
    )


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--study",
    metavar="STUDY",
    help="The study of which A and B are two sides: backends, or KEY=VALUE with the"
    " keys backend, replicas, mode, revision.  [default: A and B are studies]",
)
@_metric_option
@_different_option
@_format_option(_COMPARE_FORMATS)
@runs_dir_option
def compare(
    *,
    first: str,
    second: str,
    study: str | None,
    metric: str,
    is_different_allowed: bool,
    form: str,
    runs_dir: Path,
) -> int:
    """Shows the ratios A / B of two studies, backends or settings."""
    from harness.cli import judging

    return judging.compare(
        first,
        second,
        study=study,
        metric=metric,
        is_different_allowed=is_different_allowed,
        form=form,
        runs_dir=runs_dir,
    )


@click.command()
@click.option(
    "--baseline",
    metavar="REV|STUDY",
    help="A named baseline, a study, or a git revision.  [default: the baseline that"
    " 'baseline set' named default]",
)
@click.option(
    "--delta",
    metavar="PERCENT",
    help="The slowdown, or loss, that matters.  [default: the tolerance of the metric,"
    " 5% unless its workload declares another]",
)
@_alpha_option
@click.option(
    "--metric",
    metavar="NAME",
    default="throughput",
    show_default=True,
    help=f"{_names_of_gate()}.",
)
@click.option(
    "--quality-repeats",
    type=click.IntRange(1, limits.MAX_SEED),
    help="Quality runs of each case, with different seeds, for a metric of quality."
    f"  [default: {defaults.QUALITY_REPEATS_OF_GATE}]",
)
@_different_option
@_format_option(_GATE_FORMATS)
@without_options(
    "is_json", "is_evaluated", "quality_repeats", "controls", "efficiency_target"
)
@request_options
@click.pass_context
def gate(
    ctx: click.Context,
    /,
    *,
    baseline: str | None,
    delta: str | None,
    alpha: str,
    metric: str,
    quality_repeats: int | None,
    is_different_allowed: bool,
    form: str,
    study: str | None,
    runs_dir: Path,
    **settings: Any,
) -> int:
    """Judges whether this tree is worse than a baseline; run it again to resume."""
    from harness.cli import gating
    from harness.planning.ranges import parse_percentage

    request = make_request(settings)
    return gating.gate(
        request,
        baseline=baseline,
        rule=gating.make_rule(
            workload=request.workload,
            metric=metric,
            delta=None if delta is None else parse_percentage(delta, what="--delta"),
            alpha=parse_percentage(alpha, what="--alpha"),
        ),
        quality_repeats=quality_repeats,
        is_different_allowed=is_different_allowed,
        form=form,
        study=study,
        runs_dir=runs_dir,
        overrides=ctx.obj,
    )


@click.command()
@click.argument("action", type=click.Choice(["set", "list", "show"]))
@click.argument("study", required=False)
@click.option(
    "--name",
    default="default",
    show_default=True,
    help="Name of the baseline.",
)
@runs_dir_option
@json_option
def baseline(
    *, action: str, study: str | None, name: str, runs_dir: Path, is_json: bool
) -> int:
    """Names a study as a baseline, or shows those that are named."""
    from harness.cli import judging

    return judging.baseline(
        action, study, name=name, runs_dir=runs_dir, is_json=is_json
    )


@click.command()
@click.argument("study", required=False)
@click.option(
    "--spread",
    metavar="PERCENT",
    help="Standard deviation between generations.  [default: that of the study's"
    " primary contrast]",
)
@click.option(
    "--generations",
    "num_generations",
    type=click.IntRange(2, limits.MAX_SEED),
    help="Generations of the gate.  [default: those that --minutes allows]",
)
@click.option(
    "--minutes",
    type=MINUTES,
    metavar="MINUTES",
    help="Time of the gate.  [default: that of the study, or 9]",
)
@click.option(
    "--target",
    metavar="PERCENT",
    help="Check whether this half width can be reached in --minutes.",
)
@_delta_option
@_alpha_option
@runs_dir_option
@json_option
def power(
    *,
    study: str | None,
    spread: str | None,
    num_generations: int | None,
    minutes: float | None,
    target: str | None,
    delta: str,
    alpha: str,
    runs_dir: Path,
    is_json: bool,
) -> int:
    """Shows what a gate can find, and how long that takes."""
    from harness.cli import judging_power
    from harness.planning.ranges import parse_percentage

    return judging_power.power(
        study,
        spread=None if spread is None else parse_percentage(spread, what="--spread"),
        num_generations=num_generations,
        minutes=minutes,
        target=None if target is None else parse_percentage(target, what="--target"),
        delta=parse_percentage(delta, what="--delta"),
        alpha=parse_percentage(alpha, what="--alpha"),
        runs_dir=runs_dir,
        is_json=is_json,
    )


VERBS = (compare, gate, baseline, power)
"""In the order in which the help lists them."""
