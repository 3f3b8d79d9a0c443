"""Every trial with its status, and the machines and software that they ran on."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from reports.page import page
from reports.words import caveats, formats
from results.figures import scaling
from results.records.measuring import joules_per_example

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view import View
    from results.records.models import Environment
    from results.study.cases import Entry

LEAST_OF_MEDIAN: Final = 0.95
"""As in ``doctor``: below it, a GPU makes the others of its trial wait."""


def _row(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {
        "entry": entry,
        "status": entry.status,
        "failure": entry.status and entry.status.failure,
    }
    if entry.is_ok:
        row["throughput"] = scaling.throughput_of(entry)
        row["first_step"] = scaling.time_to_first_step_of(entry)
        row["step"] = statistics.median(
            step for rank in entry.result.ranks for step in rank.step_time_sec
        )
    return row


def render_coverage(view: View) -> Markup:
    rows = [_row(entry) for entry in view.study.entries]
    return page.render(
        "coverage",
        view=view,
        rows=rows,
        failures=[row for row in rows if not row["entry"].is_ok],
        problems=[(problem.label, problem.reason) for problem in view.study.problems],
    )


def render_machine(view: View) -> Markup:
    """Renders the facts of each environment; warns if there are several."""
    by_machine = formats.grouped(
        (entry.env.fingerprint, entry)
        for entry in view.study.planned
        if entry.env is not None
    )
    machines = [_machine(view, *pair) for pair in by_machine.items()]
    return page.render("machine", view=view, machines=machines)


def _machine(view: View, fingerprint: str, entries: list[Entry]) -> dict[str, Any]:
    records = [entry.env for entry in entries if entry.env is not None]
    shares = {
        name: [
            value for record in records if (value := getattr(record, field)) is not None
        ]
        for name, field in (
            ("loads", "load_average_before"),
            ("foreign", "foreign_cpu_fraction"),
            ("stolen", "stolen_cpu_fraction"),
        )
    }
    return shares | {
        "fingerprint": fingerprint,
        "env": records[0],
        "drift": caveats.drift_of(view, entries),
        # Trials have different numbers of them.
        "gpus": max((env.gpus for env in records), key=len),
        "gpu_uses": _while_measured(records),
        "gpu_sharing": _sharing(records),
        "gpu_products": _products(records),
        "gpu_energy": _energy(entries),
    }


def _while_measured(records: Sequence[Environment]) -> str:
    """Says what the GPUs did while trials were measured; "" without GPUs."""
    uses = [use for env in records for use in env.gpu_uses]

    def known(name: str) -> list[float]:
        return [value for use in uses if (value := getattr(use, name)) is not None]

    parts = []
    if clocks := known("clock_mhz"):
        parts.append(f"{min(clocks):,.0f} to {max(clocks):,.0f} MHz")
    if powers := known("power_watts"):
        parts.append(f"{min(powers):,.0f} to {max(powers):,.0f} W")
    if heats := known("temperature_celsius"):
        parts.append(f"at most {max(heats):.0f} degrees Celsius")
    if reasons := sorted({reason for use in uses for reason in use.slowed_by}):
        parts.append(f"clock lowered by {' and '.join(reasons)}")
    return ", ".join(parts)


def _sharing(records: Sequence[Environment]) -> str:
    """Says whether the driver confirmed that GPUs had no other users; "" without."""
    watched = [
        [use.num_foreign_processes for use in env.gpu_uses]
        for env in records
        if env.gpu_uses
    ]
    if not watched:
        return ""
    trials = formats.count(len(watched), "trial")
    if shared := sum(any(numbers) for numbers in watched):
        return (
            f"other processes used the GPUs of {shared} of {trials}, which are"
            " discarded"
        )
    if unknown := sum(None in numbers for numbers in watched):
        return (
            f"not confirmed in {unknown} of {trials}: the driver does not list"
            " processes"
        )
    return f"the driver listed no other process in {trials}"


def _products(records: Sequence[Environment]) -> str:
    """Says how fast a matrix product was before the windows; "" if not recorded."""
    watched = [env.gpu_uses for env in records if env.gpu_uses]
    known = [
        [
            (use.product_tflops, use.index)
            for use in uses
            if use.product_tflops is not None
        ]
        for uses in watched
    ]
    known = [rated for rated in known if rated]
    if not known:
        return ""
    rates = [rate for rated in known for rate, _ in rated]
    text = f"{_range(rates)} TFLOP/s in bfloat16, timed before the windows"
    compared = []
    for rated in known:
        median = statistics.median(rate for rate, _ in rated)
        rate, index = min(rated)
        if len(rated) > 1:
            compared.append((rate / median if median else 1.0, index))
    if compared:
        ratio, index = min(compared)
        text += (
            f"; the slowest GPU within a trial was GPU {index}, with "
            f"{formats.ratio(ratio)} of the median"
        )
        if ratio < LEAST_OF_MEDIAN:
            text += ": every synchronous step waited for it"
    if missing := len(watched) - len(known):
        text += f"; not recorded in {formats.count(missing, 'trial')}"
    return text


def _energy(entries: Sequence[Entry]) -> str:
    """Says what energy an example took on all GPUs; "" if not recorded."""
    joules_of: list[tuple[int, float]] = []
    unit = ""
    for entry in entries:
        if not entry.is_ok or entry.env is None:
            continue
        rate = entry.result.examples_per_sec
        joules = joules_per_example(entry.env.gpu_uses, rate)
        if joules is not None:
            joules_of.append((entry.spec.num_replicas, joules))
            unit = entry.result.example_unit.removesuffix("s")
    said = "; ".join(
        f"{_range(values)} J with {formats.count(number, 'GPU')}"
        for number, values in sorted(formats.grouped(joules_of).items())
    )
    return f"{said}, per {unit} on all GPUs of a trial" if said else ""


def _range(values: Sequence[float]) -> str:
    return formats.span([*map(formats.significant, (min(values), max(values)))])
