"""The subcommand ``report``: a page of a study, of two, or a site; other formats."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

import reports
from harness.cli import commands, running
from harness.cli.exit_codes import ExitCode
from harness.cli.subcommand import PIPE_WIDTH, console
from harness.cli.subcommands import status_command
from harness.errors import StudyError
from harness.options.kinds import choice
from harness.options.option import Options, option
from harness.planning import plan as plan_module
from harness.planning.request import RUNS_DIR, RunsDir, StudyArguments
from reports import output_file
from reports.exports import export_formats
from reports.exports.export_formats import FORMATS, ExportFormat, Output
from results.judging import gate, gate_metrics
from results.store import studies
from results.store.study_store import Store
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.exports.export_formats import Content
    from reports.site.comparison import Compared


_URL = re.compile(r"https?://\S+$")
_PAGES = {".html", ".htm"}
_NEEDS_NAME = {
    Output.FOLDER: "several files; name their directory",
    Output.FILE: "a binary file; name it",
}


def _read_format(value: object, what: str) -> str:
    """Returns the name of a format of this project, or of a plugin."""
    plugin = export_formats.find(str(value))
    return choice(tuple(FORMATS)).read(value, what) if plugin is None else plugin.name


class ReportRequest(Options):
    studies: StudyArguments
    runs_dir: RunsDir = RUNS_DIR
    output: Path | None = option(
        None,
        "The file, or a directory for `index.html` or the site.",
        short="-o",
        shown="in the study `report/index.html`, of two"
        " `report/compared-with-B.html`; stdout for other formats",
    )
    form: str | None = option(
        None,
        "What is written.",
        name="format",
        kind=dataclasses.replace(choice(tuple(FORMATS)), read=_read_format),
        shown="`html`",
    )
    data_url: str | None = option(
        None,
        "Where readers of a page find the raw records, with `{study}` for a name.",
        metavar="URL",
        shown="none; of a site, `records.zip` beside each page, up to 2 MB",
    )
    source_url: str | None = option(
        None,
        "Where the measured code is, with `{commit}` for its commit.",
        metavar="URL",
        shown="none",
    )
    metric: str = option(
        gate_metrics.THROUGHPUT.name,
        "`throughput`, `time_to_first_step` or `peak_memory`.",
        metavar="NAME",
    )
    is_different_allowed: bool = option(
        False,
        "Show two studies that are not comparable (exit code 3).",
        name="allow-different",
    )
    former = {"json": "use --format json"}  # noqa: RUF012 - of the class

    @property
    def format(self) -> ExportFormat:
        return FORMATS[self.form or "html"]

    @property
    def is_site(self) -> bool:
        return (
            len(self.studies) > 1
            and self.format.output is Output.PAGE
            and self.output is not None
            and self.output.suffix.lower() not in _PAGES
        )


_TWO = 2


def _check(request: ReportRequest) -> None:
    form, number = request.format, len(request.studies)
    needs = _NEEDS_NAME.get(form.output)
    if needs and request.output is None:
        raise StudyError(f"--format {form.name} writes {needs} with -o")
    if form.takes_one and number > 1:
        raise StudyError(
            f"--format {form.name} is for one study, not for {number}; name one"
        )
    is_page = form.output is Output.PAGE
    is_of_study = is_page and (number == 1 or request.is_site)
    urls = {"--data-url": request.data_url, "--source-url": request.source_url}
    for name, url in urls.items():
        if url is not None and not _URL.match(url):
            raise StudyError(
                f"{name} {url!r} is no address; give one that begins with https:// or"
                " http://"
            )
        if url is not None and not is_of_study:
            raise StudyError(
                f"{name} is a link on the page of a study, and none is written here;"
                " leave it out"
            )
    if request.is_site and request.data_url and "{study}" not in request.data_url:
        raise StudyError(
            f"--data-url {request.data_url!r} is the same for {number} studies; put"
            " {study} where their names are"
        )
    if number > _TWO and is_page and not request.is_site:
        raise StudyError(
            f"{number} studies need a site; name its directory with -o, such as -o site"
        )


def run(request: ReportRequest) -> int:
    is_page = request.format.output is Output.PAGE
    if len(request.studies) == 1 and request.output is None and is_page:
        root, varied = commands.studies_of(request.studies[0], request.runs_dir)
        if varied is not None:
            return commands.write_page(root)
    names = tuple(commands.expanded(request.studies, request.runs_dir))
    request = request.model_copy(update={"studies": names})
    _check(request)
    with contextlib.ExitStack() as unpacked:
        stores = [_opened(name, request, unpacked) for name in request.studies]
        problems = [load_study(Store(store.root)).problems for store in stores]
        written, code = (_write_page if is_page else _write_content)(request, stores)
        click.echo(written)
        return max([code, *map(status_command.name_problems, problems)])


def _opened(name: str, request: ReportRequest, unpacked: contextlib.ExitStack) -> Store:
    path = plan_module.find_study(name, request.runs_dir)
    root = unpacked.enter_context(studies.opened(path))
    is_page = request.format.output is Output.PAGE
    if root != path and path.is_file() and is_page and request.output is None:
        raise StudyError(f"{name!r} is a zip file; name the page with -o, -o page.html")
    store = Store.open(root).public
    store.read_plan()
    gate.read_gate(store)
    return store


def _write_page(request: ReportRequest, stores: Sequence[Store]) -> tuple[str, int]:
    """Writes a page or a site; returns its path."""
    from reports.exports import exports
    from reports.site import build as site
    from reports.site import comparison
    from reports.site.card import slugs

    data_url, source_url = request.data_url, request.source_url
    if request.is_site:
        assert request.output is not None
        metric, url = gate_metrics.metric_of(request.metric), source_url or ""
        records, missing = exports.records_of_studies(stores, data_url or "")
        for reason in missing:
            running.note(f"no raw records beside a page: {reason}")
        path = site.write_site(stores, request.output, metric, records, source_url=url)
        return str(path), ExitCode.OK
    path = request.output or stores[0].report_path
    if len(stores) == 1:
        path = path / "index.html" if path.is_dir() else path
        links = {}
        if data_url is not None:
            links[site.RAW_DATA] = data_url.replace("{study}", stores[0].root.name)
        if source_url is not None:
            links |= site.source_links(load_study(stores[0]), source_url)
        html = reports.build_report(stores[0], links)
        output_file.write(path, html, what="report")
        return str(path), ExitCode.OK
    compared, code = _compared(request, stores)
    if request.output is None:
        slug = slugs([compared.second.plan.study])[0]
        path = path.with_name(f"compared-with-{slug}.html")
    output_file.write(path, comparison.comparison_page(compared))
    return str(path), code


def _compared(request: ReportRequest, stores: Sequence[Store]) -> tuple[Compared, int]:
    from reports.site import comparison

    first, second = (load_study(store) for store in stores)
    metric = gate_metrics.metric_of(request.metric)
    compared = comparison.compare_studies(first, second, metric)
    name, other = request.studies
    commands.check_comparable(
        name, other, compared.reasons, request.is_different_allowed
    )
    return compared, ExitCode.INCONCLUSIVE if compared.reasons else ExitCode.OK


def _write_content(request: ReportRequest, stores: Sequence[Store]) -> tuple[str, int]:
    """Writes another format; returns its path, or what is to be printed."""
    content, code = _content(request, stores)
    path = request.output
    if path is None:
        assert isinstance(content, str)  # as was checked
        return content, code
    if isinstance(content, (str, bytes)):
        whole = f"{content}\n" if isinstance(content, str) else content
        output_file.write(path, whole)
    else:
        form = request.format
        paths = output_file.write_all(path, content, what=form.name)
        running.note(f"{len(paths)} {form.files}")
    return str(path), code


def _content(request: ReportRequest, stores: Sequence[Store]) -> tuple[Content, int]:
    from reports.exports import exports
    from reports.site import card, comparison

    form = request.format.name
    if request.format.writer:
        metric = gate_metrics.metric_of(request.metric)
        return request.format.export(stores, metric), ExitCode.OK
    if len(stores) == _TWO:
        compared, code = _compared(request, stores)
        return comparison.WRITERS[form](compared), code
    if len(stores) > 1:
        return card.INDEX_WRITERS[form](stores), ExitCode.OK
    if form == "text":
        return _terminal(request, stores[0]), ExitCode.OK
    write = {"markdown": exports.as_markdown, "json": exports.as_json}[form]
    return write(stores[0]), ExitCode.OK


def _terminal(request: ReportRequest, store: Store) -> str:
    from io import StringIO

    is_terminal = request.output is None and sys.stdout.isatty()
    settings = {} if is_terminal else {"width": PIPE_WIDTH}
    shown = console(file=StringIO(), force_terminal=is_terminal, **settings)
    with shown.capture() as captured:
        reports.print_summary(store, shown)
    return captured.get().strip("\n")
