"""The subcommand ``doctor``: prints what was found, and what to do."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Literal

import click

from harness.cli.exit_codes import ExitCode
from harness.cli.subcommand import console
from harness.doctor import checks, gpu
from harness.errors import ParseError
from harness.options.kinds import duration
from harness.options.option import Options, option
from harness.planning.request import IsJson
from harness.run.sweep import stop_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Measure = Callable[[Sequence[int]], Sequence[checks.Finding]]

MAX_INTERLEAVED_SEC = 3600.0
_STYLES = {"ok": "green", "caution": "yellow", "bad": "bold red"}


class DoctorRequest(Options):
    interleaved_sec: float = option(
        60.0,
        "Time to measure two equal cases, `30s` to `1h`; `0` leaves it out.",
        name="aa-pair",
        kind=duration(is_zero_allowed=True),
    )
    device: Literal["cpu", "gpu"] = option(
        "cpu",
        "What a sweep would run on; `gpu` checks the GPUs with TensorFlow as well.",
    )
    is_json: IsJson = False


def run(request: DoctorRequest) -> int:
    interleaved_sec = request.interleaved_sec
    why = ""
    if 0 < interleaved_sec < checks.LEAST_SEC:
        why = (
            f"is too short, must be at least {checks.LEAST_SEC:g}s since starting its"
            " processes takes 15 s or more; 0 leaves it out"
        )
    elif interleaved_sec > MAX_INTERLEAVED_SEC:
        why = f"is too long, must be at most {MAX_INTERLEAVED_SEC:g}s"
    if why:
        raise ParseError(f"--aa-pair {interleaved_sec:g}s {why}")
    measures: list[Measure] = [gpu.check_gpus, checks.check_canaries]
    if interleaved_sec:
        measures.append(
            functools.partial(checks.check_pair, duration_sec=interleaved_sec)
        )
    duration_sec = checks.DURATION_SEC + interleaved_sec
    if request.device == "gpu":
        measures.append(gpu.measure_gpus)
        duration_sec += gpu.DURATION_SEC
    click.echo(f"checking for about {duration_sec:.0f} s ...", err=True)
    with stop_signals():
        findings = checks.diagnose(measures=measures)
    is_unfit = checks.is_unfit(findings)
    if request.is_json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        click.echo(json.dumps({"is_fit": not is_unfit, "findings": rows}, indent=2))
    else:
        _print_table(findings)
    return ExitCode.UNFIT if is_unfit else ExitCode.OK


def _print_table(findings: Sequence[checks.Finding]) -> None:
    import rich.box
    from rich.table import Table
    from rich.text import Text

    table = Table("check", "", "found", "what to do", box=rich.box.SIMPLE_HEAD)
    for finding in findings:
        level = Text(finding.level, style=_STYLES[finding.level])
        # Text, since names of processes can contain markup.
        table.add_row(finding.check, level, Text(finding.found), Text(finding.advice))
    console().print(table)
    bad = [finding.check for finding in findings if finding.level == "bad"]
    number = sum(finding.level == "caution" for finding in findings)
    cautions = f", with {number} caution{'s' * (number > 1)}" * bool(number)
    unfit = f"unfit for timings: {', '.join(bad)}"
    click.echo(unfit if bad else f"fit for timings{cautions}")
