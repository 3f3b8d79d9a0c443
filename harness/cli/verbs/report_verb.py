"""The verb ``report``: a page of one study, of two, or a site; and other formats."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from harness.cli import arguments, exit_codes, running, varied
from harness.cli.arguments import check_comparable
from harness.cli.shared_options import (
    DEFAULT_METRIC,
    RUNS_DIR,
    IsJson,
    Metric,
    RunsDir,
    StudyArguments,
)
from harness.cli.verbs import status_verb
from harness.errors import StudyError
from harness.options.kinds import choice
from harness.options.option import Option, Options
from harness.planning import study as study_module
from reports import output_file
from reports.exports import export_formats
from reports.exports.export_formats import FORMATS, Output
from results.judging import gate_metrics
from results.store import studies
from results.store.study_store import Store
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.cli.verb import Call
    from reports.exports.export_formats import ExportFormat
    from reports.site.comparison import Compared


_URL = re.compile(r"https?://\S+$")
_PAGES = {".html", ".htm"}
_NEEDS_NAME = {
    Output.FOLDER: "several files; name their directory",
    Output.FILE: "a binary file; name it",
}


def _read_format(value: object, what: str) -> str:
    """Returns the name of a format of this project, or of a plugin."""
    found = export_formats.find(str(value))
    return choice(tuple(FORMATS)).read(value, what) if found is None else found.name


class ReportRequest(Options):
    """What is reported."""

    studies: StudyArguments
    runs_dir: RunsDir = RUNS_DIR
    output: Annotated[
        Path | None,
        Option(
            "The file, or a directory for `index.html` or the site.",
            also=("-o",),
            default="in the study `report/index.html`, of two"
            " `report/compared-with-B.html`; stdout for other formats",
        ),
    ] = None
    form: Annotated[
        str | None,
        Option(
            "What is written.",
            name="format",
            kind=dataclasses.replace(choice(tuple(FORMATS)), read=_read_format),
            default="`html`",
        ),
    ] = None
    data_url: Annotated[
        str | None,
        Option(
            "Where readers of a page find the raw records, with `{study}` for a name.",
            metavar="URL",
            default="none; of a site, `records.zip` beside each page, up to 2 MB",
        ),
    ] = None
    source_url: Annotated[
        str | None,
        Option(
            "Where the measured code is, with `{commit}` for its commit.",
            metavar="URL",
            default="none",
        ),
    ] = None
    metric: Metric = DEFAULT_METRIC
    is_different_allowed: Annotated[
        bool,
        Option(
            "Show two studies that are not comparable (exit code 3).",
            name="allow-different",
        ),
    ] = False
    is_json: IsJson = False

    @property
    def format(self) -> ExportFormat:
        """The requested format, by default pages."""
        return FORMATS[self.form or "html"]

    @property
    def is_page_of_varied(self) -> bool:
        """Whether the page of a varied study is requested, if that is what is named."""
        return (
            len(self.studies) == 1
            and self.form in (None, "html")
            and self.output is None
            and not self.is_json
        )

    @property
    def is_site(self) -> bool:
        """Whether several studies go to a directory."""
        return (
            len(self.studies) > 1
            and self.format.output is Output.PAGE
            and self.output is not None
            and self.output.suffix.lower() not in _PAGES
        )


def check(request: ReportRequest) -> None:
    """Checks that options go together."""
    if request.is_json and (request.form or len(request.studies) > 1):
        raise StudyError(
            "--json is for the report of one study and excludes --format; use"
            " --format json"
        )
    form = request.format
    needs = _NEEDS_NAME.get(form.output)
    if needs and request.output is None:
        raise StudyError(f"--format {form.name} writes {needs} with -o")
    if form.takes_one and len(request.studies) > 1:
        raise StudyError(
            f"--format {form.name} is for one study, not for {len(request.studies)};"
            " name one"
        )
    is_page = form.output is Output.PAGE
    is_of_study = is_page and (len(request.studies) == 1 or request.is_site)
    for name, url in (
        ("--data-url", request.data_url),
        ("--source-url", request.source_url),
    ):
        if url is None:
            continue
        if not _URL.match(url):
            raise StudyError(
                f"{name} {url!r} is no address; give one that begins with https:// or"
                " http://"
            )
        if not is_of_study:
            raise StudyError(
                f"{name} is a link on the page of a study, and none is written here;"
                " leave it out"
            )
    if request.is_site and request.data_url and "{study}" not in request.data_url:
        raise StudyError(
            f"--data-url {request.data_url!r} is the same for"
            f" {len(request.studies)} studies; put {{study}} where their names are"
        )
    if len(request.studies) > _TWO and is_page and not request.is_site:
        raise StudyError(
            f"{len(request.studies)} studies need a site; name its directory with -o,"
            " such as -o site"
        )


_TWO = 2


def run(request: ReportRequest, _: Call) -> int:
    """Writes or prints what is requested; corrupt records are named and left out."""
    one = varied.names_of(request.studies[0], request.runs_dir)
    if one is not None and request.is_page_of_varied:
        return varied.write_page(one[0])
    names = tuple(varied.expanded(request.studies, request.runs_dir))
    request = request.model_copy(update={"studies": names})
    check(request)
    with contextlib.ExitStack() as unpacked:
        stores = [_opened(name, request, unpacked) for name in request.studies]
        problems = [store.read().problems for store in stores]
        code = exit_codes.OK
        if request.format.writer:
            _export(request, stores)
        elif request.format.output is Output.PAGE:
            code = _write_pages(request, stores)
        else:
            text, code = _text(request, stores)
            _emit(request, text)
        return max([code, *map(status_verb.name_problems, problems)])


def _opened(name: str, request: ReportRequest, unpacked: contextlib.ExitStack) -> Store:
    """Returns a study that is named, or whose folder or zip file is."""
    path = study_module.find_study(name, request.runs_dir)
    root = unpacked.enter_context(studies.opened(path))
    is_page = request.format.output is Output.PAGE
    if root != path and path.is_file() and is_page and request.output is None:
        raise StudyError(f"{name!r} is a zip file; name the page with -o, -o page.html")
    store = Store.open(root).public
    store.read_plan()
    return store


def _write_pages(request: ReportRequest, stores: Sequence[Store]) -> int:
    from reports.exports import exports
    from reports.page import build
    from reports.site import build as site
    from reports.site import comparison
    from reports.site.card import slugs

    metric = gate_metrics.metric_of(request.metric)
    if request.is_site:
        assert request.output is not None
        records, missing = exports.records_of_studies(stores, request.data_url or "")
        path = site.write_site(
            stores, request.output, metric, records, source_url=request.source_url or ""
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
    compared, code = _compared(request, stores)
    default = f"compared-with-{slugs([compared.second.plan.study])[0]}.html"
    path = request.output or stores[0].report_path.with_name(default)
    output_file.write(path, comparison.build(compared))
    click.echo(str(path))
    return code


def _compared(request: ReportRequest, stores: Sequence[Store]) -> tuple[Compared, int]:
    """Compares two studies; refuses what is not comparable."""
    from reports.site import comparison

    first, second = (load_study(store) for store in stores)
    metric = gate_metrics.metric_of(request.metric)
    found = comparison.compare_studies(first, second, metric)
    name, other = request.studies
    check_comparable(name, other, found.reasons, request.is_different_allowed)
    return found, exit_codes.INCONCLUSIVE if found.reasons else exit_codes.OK


def _text(request: ReportRequest, stores: Sequence[Store]) -> tuple[str, int]:
    """Returns what is printed, and the exit code."""
    from reports.exports import exports
    from reports.site import card, comparison

    form = str(request.form)
    if len(stores) == _TWO:
        compared, code = _compared(request, stores)
        return comparison.WRITERS[form](compared), code
    if len(stores) > 1:
        return card.INDEX_WRITERS[form](stores), exit_codes.OK
    if form == "text":
        return _terminal(request, stores[0]), exit_codes.OK
    write = {"markdown": exports.as_markdown, "json": exports.as_json}[form]
    return write(stores[0]), exit_codes.OK


def _terminal(request: ReportRequest, store: Store) -> str:
    from io import StringIO

    from rich.console import Console

    from reports.exports import exports

    stream = StringIO()
    is_terminal = request.output is None and sys.stdout.isatty()
    width = Console().width if is_terminal else arguments.PIPE_WIDTH
    console = Console(
        file=stream, width=width, highlight=False, force_terminal=is_terminal
    )
    exports.print_summary(store, console)
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
