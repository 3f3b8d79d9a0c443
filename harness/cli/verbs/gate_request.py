"""What a gate measures: a sweep of two sides, and the rule that judges them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from harness import catalog
from harness.cli.shared_options import (
    DEFAULT_ALPHA,
    DEFAULT_METRIC,
    JUDGING,
    Alpha,
    IsDifferentAllowed,
)
from harness.cli.verbs.sweep_verb import HostRequest, RunRequest
from harness.errors import PlanError
from harness.options import kinds
from harness.options.kinds import NAMES, PERCENTAGE, duration
from harness.options.option import Option
from harness.planning import defaults
from harness.planning.request import DESIGN, MEASURED, OWN, STUDY, Count
from results.figures import trial_metrics
from results.judging import gate_metrics
from results.judging.gate_metrics import Rule
from results.records.measuring import UNITS
from results.statistics import group_sequential

if TYPE_CHECKING:
    from collections.abc import Collection


def make_rule(*, workload: str, metric: str, delta: float | None, alpha: float) -> Rule:
    """Returns a checked rule."""
    declared = catalog.metrics(catalog.workload(workload)) if workload else ()
    of = gate_metrics.metric_of_gate(metric, declared)
    return Rule(metric=of, delta=of.tolerance if delta is None else delta, alpha=alpha)


def _of_plugins() -> str:
    """Says which metrics installed packages add; imports none."""
    names = trial_metrics.names()
    return f", {', '.join(f'`{name}`' for name in names)} (plugins)" if names else ""


def _learnable() -> str:
    """Says which metrics of quality a gate judges, by workload."""
    return "; ".join(
        f"{', '.join(f'`{of}`' for of in catalog.judged_metrics(info))} ({name})"
        for name, info in catalog.WORKLOADS.items()
    )


_LOOKS = ", ".join(map(str, group_sequential.planned_looks(DEFAULT_ALPHA)))
_FEWEST = group_sequential.fewest_to_pass(DEFAULT_ALPHA)


_FORMER = ("data-dir", "num-measured-steps", "num-warmup-steps", "work")


class GateRequest(RunRequest):
    """A sweep of two sides on this machine, and how they are judged."""

    not_options = frozenset(
        {
            *("controls", "efficiency_target", "target", "quality_repeats", "is_json"),
            *("retry", "vary", *HostRequest.model_fields),
        }
    )

    former = {of: RunRequest.former[of] for of in _FORMER}  # noqa: RUF012
    retry: Literal["failed"] | None = "failed"
    backends: Annotated[
        tuple[str, ...],
        Option(
            "Comma-separated names; no peer is measured unless it is named.",
            MEASURED,
            kind=NAMES,
        ),
    ] = defaults.BACKENDS_OF_GATE
    repeats: Annotated[
        Count | None,
        Option(
            f"Exactly so many runs, analysed once; a pass needs {_FEWEST}, at another"
            " `--alpha` others.",
            DESIGN,
            default=f"analysed after {_LOOKS}, until a verdict is clear; {_FEWEST} in"
            " sequence",
        ),
    ] = None
    minutes: Annotated[
        float | None,
        Option(
            "The most time, start-up included.",
            DESIGN,
            name="time-budget",
            kind=duration("min"),
            default=f"`{defaults.MINUTES_OF_GATE:g}min`; `{defaults.MINUTES:g}min` with"
            " `--repeats`",
        ),
    ] = None
    is_equal_measured: Annotated[
        bool,
        Option(
            "Measure equal code too, to see how often the gate errs.",
            JUDGING,
            name="measure-equal",
        ),
    ] = False
    baseline_name: Annotated[
        str | None,
        Option(
            "A study, or a git revision, in this order.",
            JUDGING,
            name="baseline",
            metavar="REV|STUDY",
            default="required",
        ),
    ] = None
    delta: Annotated[
        float | None,
        Option(
            "The slowdown, or loss, that matters.",
            JUDGING,
            kind=PERCENTAGE,
            default="5%, or what the workload declares for the metric",
        ),
    ] = None
    alpha: Alpha = DEFAULT_ALPHA
    metric: Annotated[
        str,
        Option(
            f"`throughput`, `efficiency` (beside a revision),"
            f" `time_to_first_step`, `peak_memory`{_of_plugins()}; or quality:"
            f" {_learnable()}. With `--command`: `NAME=PATTERN`, as in"
            " `sweep`.",
            JUDGING,
            metavar="NAME",
        ),
    ] = DEFAULT_METRIC
    counts: Annotated[
        tuple[str, ...],
        Option(
            "A count of a step in which a rise is a regression:"
            f" {', '.join(f'`{name}`' for name in UNITS)}; others are only shown. With"
            " `--command`: `NAME=PATTERN`, as in `sweep`. Can be repeated.",
            JUDGING,
            name="count",
            kind=kinds.TEXTS,
            metavar="NAME",
            default="none",
        ),
    ] = ()
    setup: Annotated[
        str | None,
        Option(
            "Shell command that prepares each revision, once, such as `uv sync`.",
            OWN,
        ),
    ] = None
    num_seeds: Annotated[
        Count | None,
        Option(
            "Quality runs of each case, for a metric of quality.",
            JUDGING,
            name="quality-repeats",
            default=f"{defaults.QUALITY_REPEATS_OF_GATE}",
        ),
    ] = None
    is_different_allowed: IsDifferentAllowed = False
    form: Annotated[
        Literal["text", "junit", "github", "markdown", "json"],
        Option(
            "How the result is written to stdout; `github`: annotations.",
            JUDGING,
            name="format",
        ),
    ] = "text"
    files: Annotated[
        tuple[str, ...],
        Option(
            "Also write a file, in a format of `--format`; can be repeated.",
            JUDGING,
            name="write",
            kind=kinds.TEXTS,
            metavar="FORMAT=FILE",
            default="none",
        ),
    ] = ()
    study: Annotated[
        str | None,
        Option(
            "Directory of the gate's study.",
            STUDY,
            metavar="NAME",
            default="`gate-<workload>-<preset>-<digest>`",
        ),
    ] = None


def files_of(request: GateRequest, forms: Collection[str]) -> dict[Path, str]:
    """Returns the formats of the files that the result is written into."""
    found = {}
    for text in request.files:
        form, equals, name = text.partition("=")
        if form not in forms or not equals or not name:
            raise PlanError(
                f"--write {text!r} is not FORMAT=FILE; use one of {', '.join(forms)},"
                " such as --write junit=gate.xml"
            )
        path = Path(name)
        if not path.absolute().parent.is_dir() or path.is_dir():
            raise PlanError(
                f"--write {text!r}: {name!r} cannot be a file, since"
                + (" it is a folder" if path.is_dir() else " its folder does not exist")
                + "; choose another, or make the folder"
            )
        found[path] = form
    return found
