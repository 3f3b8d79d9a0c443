"""The verb ``verify``: recomputes what a study states from its raw observations."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import click

from harness.cli import exit_codes, varied
from harness.cli.arguments import one_line
from harness.cli.shared_options import RUNS_DIR, IsJson, RunsDir, StudyArgument
from harness.cli.terminal import console
from harness.options.option import Options
from harness.planning import study as study_module
from results import errors
from results.judging import gate_file
from results.store import record_file, untrusted, zipped
from results.store.manifest import MANIFEST_NAME
from results.store.study_store import Store
from results.study.cases import load_study
from results.verify import listed, plugin_parts
from results.verify.against_raw import verify as verify_study

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.cli.verb import Call
    from results.verify.check import Check
    from results.verify.listed import Covered

_PAGE = "numbers on the page"
_PAGE_TEXT = "text of the page"
_VERDICT = "verdict"
_TOLERANCE = 1e-9
_ELSEWHERE = "the verdict of the gate: its baseline is another study"
_SHOWN_BEFORE = 20
_SHOWN_AFTER = 60
_MOST_SHOWN = 20
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


class VerifyRequest(Options):
    """What is verified."""

    study: StudyArgument
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False


def run(request: VerifyRequest, call: Call) -> int:
    """Verifies a study, or each study of a varied one and their page."""
    path = study_module.find_study(request.study, request.runs_dir)
    with zipped.opened(path) as root:
        if root != path:
            request = request.model_copy(update={"study": str(root.absolute())})
        return varied.for_each(_verify, varied.compare)(request, call)


def _verify(request: VerifyRequest, _: Call) -> int:
    """Compares a study with its raw observations and prints what was found."""
    store = Store.open(study_module.find_study(request.study, request.runs_dir))
    check = verify_study(store)
    covered = listed.compare(store, check)
    is_elsewhere = _verify_gate(store, check)
    shown = _verify_page(store, check)
    left = [
        *listed.not_covered(covered),
        *[_ELSEWHERE] * is_elsewhere,
        *plugin_parts.not_covered(store.read_plan()),
        *(f"section {of}: what a plugin shows is its own" for of in shown),
    ]
    if request.is_json:
        data = {
            "kinds": [dataclasses.asdict(kind) for kind in check.kinds],
            "differences": [dataclasses.asdict(item) for item in check.differences],
            "missing": check.missing,
            "manifest": dataclasses.asdict(covered),
            "not_covered": left,
        }
        click.echo(json.dumps(data, indent=2))
    else:
        _print(check)
        _print_left(covered, left)
    return exit_code(check)


def exit_code(check: Check) -> int:
    """Returns the exit code: everything, a part, or nothing is verified."""
    if check.differences or (check.missing and check.num_recomputed):
        return exit_codes.SOME_TRIALS_FAILED
    return exit_codes.OK if check.num_recomputed else exit_codes.NOTHING_MEASURED


def _verify_gate(store: Store, check: Check) -> bool:
    """Compares the record of a gate with the plan and the trials, field by field."""
    from reports.words.judging import gate_brief

    if store.read_plan().measuring.gate is None:
        return False
    try:
        stored = gate_file.read(store)
    except errors.CorruptRecordError as error:
        check.differ(_VERDICT, gate_file.GATE_NAME, "readable", one_line(str(error)))
        return False
    if stored is None:
        return False
    made = gate_brief.derived(load_study(store))
    if made is None:
        return True
    stated, derived = (
        dict(_leaves("", untrusted.parsed(record_file.content_of(of))))
        for of in (stored, made)
    )
    for name in {**stated, **derived}:
        where = f"{gate_file.GATE_NAME} {name}"
        one, other = stated.get(name), derived.get(name)
        check.compare(_VERDICT, where, one, other, tolerance=_TOLERANCE)
    return False


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields each value in a record with its place, such as ``cases[0].n``."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}".lstrip("."), inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(f"{name}[{number}]", inner)
    else:
        yield name, value


def _verify_page(store: Store, check: Check) -> list[str]:
    """Compares the numbers on the stored page with those of a page made anew.

    The page is a function of the records, which were compared with the raw
    observations before. Sections of plugins are left out.
    """
    from reports.page import build

    try:
        stored = untrusted.read_text(store.report_path)
    except untrusted.DamagedFileError as error:
        check.differ(_PAGE, str(store.report_path), "readable", one_line(str(error)))
        return []
    if stored is None:
        return []
    stored, shown = plugin_parts.without_sections(stored)
    made, _ = plugin_parts.without_sections(build.build_report(store))
    stated, derived = _NUMBER.findall(stored), _NUMBER.findall(made)
    if len(stated) != len(derived):
        check.differ(
            _PAGE,
            "report/index.html",
            f"{len(stated)} numbers",
            f"{len(derived)} numbers: made by another version, or changed; make it "
            "again with 'report'",
        )
        return shown
    num_before = len(check.differences)
    for position, (one, other) in enumerate(zip(stated, derived, strict=True)):
        check.compare(_PAGE, f"report/index.html number {position + 1}", one, other)
    if stored != made and len(check.differences) == num_before:
        line, one, other = _first_difference(stored, made)
        check.differ(_PAGE_TEXT, f"report/index.html line {line}", one, other)
    return shown


def _first_difference(stored: str, made: str) -> tuple[int, str, str]:
    """Returns the line in which two texts begin to differ, and what follows in both."""
    pairs = itertools.zip_longest(stored, made)
    place = next(number for number, (one, other) in enumerate(pairs) if one != other)
    start = max(0, place - _SHOWN_BEFORE)
    line = made.count("\n", 0, place) + 1
    one, other = (text[start : place + _SHOWN_AFTER] for text in (stored, made))
    return line, one, other


def _print(check: Check) -> None:
    import rich.box
    from rich.table import Table

    table = Table("figures", box=rich.box.SIMPLE_HEAD)
    for name in ("recomputed", "differ", "no raw observations"):
        table.add_column(name, justify="right")
    for kind in check.kinds:
        counts = (kind.num_recomputed, kind.num_different, kind.num_missing)
        table.add_row(kind.kind, *(f"{count:,}" for count in counts))
    console().print(table)
    for item in check.differences[:_MOST_SHOWN]:
        click.echo(
            one_line(
                f"differs: {item.where}: stated {item.stated}, recomputed"
                f" {item.recomputed}"
            )
        )
    for reason in check.missing[:_MOST_SHOWN]:
        click.echo(one_line(f"not verified: {reason}"))
    for name, items in (("differ", check.differences), ("missing", check.missing)):
        if len(items) > _MOST_SHOWN:
            click.echo(f"{len(items) - _MOST_SHOWN} more {name}: see --json")
    click.echo(_conclusion(check))


def _print_left(covered: Covered, left: Sequence[str]) -> None:
    if covered.num_listed:
        click.echo(f"{MANIFEST_NAME}: the files of {covered.num_listed:,} trials")
    for what in left:
        click.echo(f"not covered: {what}")


def _conclusion(check: Check) -> str:
    if check.differences:
        number = len(check.differences)
        differ = "figure differs" if number == 1 else "figures differ"
        return f"not verified: {number:,} {differ}"
    if not check.num_recomputed:
        return "nothing verified: there are no raw observations"
    if check.missing:
        return (
            f"partly verified: {check.num_recomputed:,} figures are as recomputed,"
            f" {len(check.missing)} could not be recomputed"
        )
    return f"verified: {check.num_recomputed:,} figures are as recomputed"
