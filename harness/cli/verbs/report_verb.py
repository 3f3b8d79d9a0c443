"""The verb ``report``: a page of one study, of two, or a site; and other formats."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import click

from harness.cli import exit_codes, running, terminal, varied
from harness.cli.arguments import check_comparable
from harness.cli.verbs import status_verb
from harness.cli.verbs.report_request import ReportRequest, check
from harness.errors import StudyError
from harness.planning import study as study_module
from reports import output_file
from reports.exports.export_formats import Output
from results.judging import gate_metrics
from results.store import zipped
from results.store.study_store import Store
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.cli.verb import Call
    from reports.site.comparison import Compared

_TWO = 2


def run(request: ReportRequest, _: Call) -> int:
    """Writes or prints what is requested; corrupt records are named and left out."""
    one = varied.names_of(request.studies[0], request.runs_dir)
    if one is not None and request.is_page_of_varied:
        return varied.rewrite_page(one[0])
    names = tuple(varied.expanded(request.studies, request.runs_dir))
    request = request.model_copy(update={"studies": names})
    check(request)
    with contextlib.ExitStack() as unpacked:
        stores = [_opened(name, request, unpacked) for name in request.studies]
        return _report(request, stores)


def _opened(name: str, request: ReportRequest, unpacked: contextlib.ExitStack) -> Store:
    """Returns a study that is named, or whose folder or zip file is."""
    path = study_module.find_study(name, request.runs_dir)
    root = unpacked.enter_context(zipped.opened(path))
    is_page = request.format.output is Output.PAGE
    if root != path and path.is_file() and is_page and request.output is None:
        raise StudyError(f"{name!r} is a zip file; name the page with -o, -o page.html")
    store = Store.open(root).public
    store.read_plan()
    return store


def _report(request: ReportRequest, stores: Sequence[Store]) -> int:
    problems = [store.read().problems for store in stores]  # before anything is written
    if request.format.writer:
        _export(request, stores)
        code = exit_codes.OK
    elif request.format.output is Output.PAGE:
        code = _write_pages(request, stores)
    else:
        text, code = _text(request, stores)
        _emit(request, text)
    return max([code, *map(status_verb.name_problems, problems)])


def _write_pages(request: ReportRequest, stores: Sequence[Store]) -> int:
    from reports.exports import archive
    from reports.page import build
    from reports.site import build as site
    from reports.site import comparison
    from reports.site.card import slugs

    metric = gate_metrics.metric_of(request.metric)
    if request.is_site:
        assert request.output is not None
        records, missing = archive.of_studies(stores, request.data_url or "")
        path = site.write_site(
            stores,
            request.output,
            metric,
            records,
            source_url=request.source_url or "",
        )
        for reason in missing:
            running.note(f"no raw records beside a page: {reason}")
        click.echo(str(path))
        return exit_codes.OK
    if len(stores) == 1:
        path = request.output or stores[0].report_path
        if path.is_dir():
            path /= "index.html"
        html = build.build_report(stores[0])
        links = {}
        if request.data_url is not None:
            name = stores[0].root.name
            links[site.RAW_DATA] = request.data_url.replace("{study}", name)
        if request.source_url is not None:
            links |= site.source_links(load_study(stores[0]), request.source_url)
        output_file.write(path, site.with_links(html, links), what="report")
        if request.is_json:
            running.print_summary(stores[0], is_json=True)
            running.note(f"report: {path}")
        else:
            click.echo(str(path))
        return exit_codes.OK
    compared = _compared(request, stores)
    default = f"compared-with-{slugs([compared.second.plan.study])[0]}.html"
    path = request.output or stores[0].report_path.with_name(default)
    output_file.write(path, comparison.build(compared))
    click.echo(str(path))
    return _code(compared)


def _compared(request: ReportRequest, stores: Sequence[Store]) -> Compared:
    """Compares two studies; refuses what is not comparable."""
    from reports.site import comparison

    first, second = (load_study(store) for store in stores)
    metric = gate_metrics.metric_of(request.metric)
    found = comparison.compare_studies(first, second, metric)
    name, other = request.studies
    check_comparable(name, other, found.reasons, request.is_different_allowed)
    return found


def _code(compared: Compared) -> int:
    return exit_codes.INCONCLUSIVE if compared.reasons else exit_codes.OK


def _text(request: ReportRequest, stores: Sequence[Store]) -> tuple[str, int]:
    """Returns what is printed, and the exit code."""
    from reports.exports import exports
    from reports.site import compared_text, table

    form = request.form
    if len(stores) == 1:
        if form == "text":
            return _terminal(request, stores[0]), exit_codes.OK
        write = {
            "markdown": exports.as_markdown,
            "json": exports.as_json,
        }[str(form)]
        return write(stores[0]), exit_codes.OK
    if len(stores) == _TWO:
        compared = _compared(request, stores)
        return compared_text.WRITERS[str(form)](compared), _code(compared)
    return table.WRITERS[str(form)](stores), exit_codes.OK


def _terminal(request: ReportRequest, store: Store) -> str:
    from io import StringIO

    from rich.console import Console

    from reports.exports import text

    stream = StringIO()
    is_terminal = request.output is None and sys.stdout.isatty()
    width = Console().width if is_terminal else terminal.PIPE_WIDTH
    console = Console(
        file=stream, width=width, highlight=False, force_terminal=is_terminal
    )
    text.print_summary(store, console)
    return stream.getvalue().strip("\n")


def _emit(request: ReportRequest, text: str) -> None:
    if request.output is None:
        click.echo(text)
        return
    output_file.write(request.output, f"{text}\n")
    click.echo(str(request.output))


def _export(request: ReportRequest, stores: Sequence[Store]) -> None:
    """Writes a format that has a writer; prints the path, or the text."""
    form = request.format
    content = form.export(stores, gate_metrics.metric_of(request.metric))
    if isinstance(content, str):
        _emit(request, content)
        return
    assert request.output is not None
    if isinstance(content, bytes):
        output_file.write(request.output, content)
    else:
        paths = output_file.write_all(request.output, content, what=form.name)
        running.note(f"{len(paths)} {form.files}")
    click.echo(str(request.output))
