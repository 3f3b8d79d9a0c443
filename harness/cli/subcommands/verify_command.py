"""The subcommand ``verify``: recomputes what a study states from raw observations."""

from __future__ import annotations

import dataclasses
import functools
import html
import itertools
import json
import re
from typing import TYPE_CHECKING, Final

import click

import reports
from harness.cli import commands
from harness.cli.exit_codes import ExitCode
from harness.cli.subcommand import console, one_line
from harness.options.option import Options
from harness.planning import plan as plan_module
from harness.planning.request import RUNS_DIR, IsJson, RunsDir, StudyArgument
from results import errors, plugins
from results.judging import gate as gate_module
from results.judging import gate_metrics
from results.store import manifest, studies, study_store, untrusted
from results.store.manifest import MANIFEST_NAME
from results.store.study_store import PLAN_NAME, VARIED_NAME, Store
from results.study.cases import load_study
from results.verify import check as check_module
from results.verify import trials
from results.verify.check import Check, Mismatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from results.records.models import Plan

_PAGE: Final = "page"
_GATE: Final = "record of the gate"
_TOLERANCE = 1e-9
_ELSEWHERE = "the verdict of the gate: its baseline is another study"
_SHOWN_BEFORE = 20
_SHOWN_AFTER = 60
_MOST_SHOWN = 20
_SECTION: Final = re.compile(
    r'<section id="(?P<slug>[^"]*)" data-plugin="(?P<package>[^"]*)".*?</section>\n',
    re.DOTALL,
)


class VerifyRequest(Options):
    study: StudyArgument
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False


def run(request: VerifyRequest) -> int:
    path = plan_module.find_study(request.study, request.runs_dir)
    with studies.opened(path) as root:
        if root != path:
            request = request.model_copy(update={"study": str(root.absolute())})
        run = functools.partial(_verify, request)
        return commands.for_each(request, run, _verify_varied)


def _verify_varied(root: Path) -> int:
    """Compares which studies a varied one has, and their page with one made anew."""
    from reports.site import build as site

    check, index = Check(), studies.read(root)
    folders = {folder.name for folder in untrusted.folders_with(root, PLAN_NAME)}
    for name in sorted(folders - set(index.studies if index else ())):
        check.differ(check_module.FILES, f"{name}/", f"not in {VARIED_NAME}", "a study")
    listed = check_module.read_manifest(root, check)
    if listed is not None:  # an earlier version wrote none
        own = manifest.digest_of(root / VARIED_NAME)
        check_module.compare_digest(VARIED_NAME, own, listed, check)
    differences = [*map(_shown, check.differences)]
    path = root / "report" / "index.html"
    try:
        stored = None if differences else untrusted.read_text(path)
        if stored is not None and stored != site.build_varied(root):
            said = "is not what the records say; 'report' writes it again"
            differences.append(f"differs: {path} {said}")
    except untrusted.DamagedFileError as error:
        differences.append(f"differs: {path}: stated {error}, recomputed a page")
    for line in differences:
        click.echo(line)
    return ExitCode.SOME_TRIALS_FAILED if differences else ExitCode.OK


def _shown(item: Mismatch) -> str:
    return f"differs: {item.where}: stated {item.stated}, recomputed {item.recomputed}"


def _verify(request: VerifyRequest, store: Store) -> int:
    check = check_module.verify_study(store)
    covered = check_module.compare_files(store, check)
    is_elsewhere = _verify_gate(store, check)
    shown = _verify_page(store, check)
    left = [
        *covered.not_covered,
        *[_ELSEWHERE] * is_elsewhere,
        *_plugin_lines(store.read_plan()),
        *(f"section {each}: what a plugin shows is its own" for each in shown),
    ]
    if request.is_json:
        data = {
            "kinds": [dataclasses.asdict(each) for each in check.kinds.values()],
            "differences": [dataclasses.asdict(item) for item in check.differences],
            "missing": check.missing,
            "manifest": dataclasses.asdict(covered),
            "not_covered": left,
        }
        click.echo(json.dumps(data, indent=2))
    else:
        _print(check)
        if covered.num_listed:
            click.echo(f"{MANIFEST_NAME}: the files of {covered.num_listed:,} trials")
        for what in left:
            click.echo(f"not covered: {what}")
    return exit_code(check)


def _plugin_lines(plan: Plan) -> Iterator[str]:
    yield from plugins.not_covered(plan.plugins)
    gate = plan.measuring.gate
    known = {facts.name for facts in plan.metrics} | {*gate_metrics.METRICS}
    if gate and gate.metric not in known | {gate_metrics.EFFICIENCY.name}:
        yield (
            f"the gate judges {gate.metric}, which a plugin computes: what it says of a"
            " trial is its own"
        )


def exit_code(check: Check) -> int:
    if check.differences or (check.missing and check.num_recomputed()):
        return ExitCode.SOME_TRIALS_FAILED
    return ExitCode.OK if check.num_recomputed() else ExitCode.NOTHING_MEASURED


def _verify_gate(store: Store, check: Check) -> bool:
    """Compares the record of a gate with the plan and the trials, field by field."""
    from reports.words import judgement

    if store.read_plan().measuring.gate is None:
        return False
    try:
        stored = gate_module.read_gate(store)
    except errors.CorruptRecordError as error:
        check.differ(_GATE, gate_module.GATE_NAME, "readable", one_line(str(error)))
        return False
    if stored is None:
        return False
    made = judgement.derived(load_study(store))
    if made is None:
        return True
    stated, derived = (
        dict(trials.leaves(untrusted.parsed(study_store.content_of(gate))))
        for gate in (stored, made)
    )
    for name in {**stated, **derived}:
        kind = check_module.VERDICT if name.endswith("verdict") else _GATE
        both = stated.get(name), derived.get(name)
        check.compare(kind, f"{gate_module.GATE_NAME} {name}", *both, _TOLERANCE)
    return False


def _verify_page(store: Store, check: Check) -> list[str]:
    """Compares the page with one made anew, byte for byte, but for plugins."""
    try:
        stored = untrusted.read_text(store.report_path)
    except untrusted.DamagedFileError as error:
        check.differ(_PAGE, str(store.report_path), "readable", one_line(str(error)))
        return []
    if stored is None:
        return []
    stored, shown = _without_sections(stored)
    made, _ = _without_sections(reports.build_report(store))
    if stored == made:
        check.agree(_PAGE)
    else:
        pairs = enumerate(itertools.zip_longest(stored, made))
        position = next(number for number, (one, other) in pairs if one != other)
        shown_here = slice(max(0, position - _SHOWN_BEFORE), position + _SHOWN_AFTER)
        where = f"report/index.html line {made.count(chr(10), 0, position) + 1}"
        why = "made by another version, or changed; make it again with 'report'"
        check.differ(_PAGE, where, stored[shown_here], f"{made[shown_here]}: {why}")
    return shown


def _without_sections(page: str) -> tuple[str, list[str]]:
    """Returns a page without sections of plugins, and what was left out."""
    sections = list(_SECTION.finditer(page))
    kept = _SECTION.sub("", page)
    for match in sections:
        lines = kept.splitlines(keepends=True)
        link = f'<li><a href="#{match["slug"]}">'
        kept = "".join(line for line in lines if not line.startswith(link))
    return kept, [
        html.unescape(f"{match['slug']!r} of {match['package']}") for match in sections
    ]


def _print(check: Check) -> None:
    import rich.box
    from rich.table import Table

    table = Table("figures", box=rich.box.SIMPLE_HEAD)
    for name in ("recomputed", "differ", "no raw observations"):
        table.add_column(name, justify="right")
    for kind in check.kinds.values():
        counts = (kind.num_recomputed, kind.num_different, kind.num_missing)
        table.add_row(kind.kind, *(f"{count:,}" for count in counts))
    console().print(table)
    for item in check.differences[:_MOST_SHOWN]:
        click.echo(one_line(_shown(item)))
    for reason in check.missing[:_MOST_SHOWN]:
        click.echo(one_line(f"not verified: {reason}"))
    for name, items in (("differ", check.differences), ("missing", check.missing)):
        if len(items) > _MOST_SHOWN:
            click.echo(f"{len(items) - _MOST_SHOWN} more {name}: see --json")
    click.echo(_conclusion(check))


def _conclusion(check: Check) -> str:
    if number := len(check.differences):
        differ = "value differs" if number == 1 else "values differ"
        return f"not verified: {number:,} {differ}"
    if not check.num_recomputed():
        return "nothing verified: there are no raw observations"
    number = check.num_recomputed(*check_module.KINDS)
    are = "figure is" if number == 1 else "figures are"
    conclusion = f"verified: {number:,} headline {are} as recomputed"
    lost = len(check.missing)
    return (
        f"partly {conclusion}, {lost} values could not be recomputed"
        if lost
        else conclusion
    )
