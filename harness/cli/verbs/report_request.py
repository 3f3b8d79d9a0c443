"""What is reported: studies, formats, and which of the options go together."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from harness.cli.shared_options import (
    DEFAULT_METRIC,
    RUNS_DIR,
    IsJson,
    Metric,
    RunsDir,
    StudyArguments,
)
from harness.errors import StudyError
from harness.options.kinds import choice
from harness.options.option import Option, Options
from reports.exports import export_formats
from reports.exports.export_formats import FORMATS, Output

if TYPE_CHECKING:
    from reports.exports.export_formats import ExportFormat

_URL = re.compile(r"https?://\S+$")
_PAGES = {".html", ".htm"}
_TWO = 2
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
            also=("-o",),
            help="The file; of one study also a directory for `index.html`, of several"
            " the directory of the site.",
            default="`report/index.html` in the study, `report/compared-with-B.html` of"
            " two; stdout for other formats",
        ),
    ] = None
    form: Annotated[
        str | None,
        Option(
            name="format",
            kind=dataclasses.replace(choice(tuple(FORMATS)), read=_read_format),
            help="What is written.",
            default="`html`",
        ),
    ] = None
    data_url: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="Where readers of a page find the raw records, with `{study}` for a"
            " name; of a site in place of a `records.zip` of at most 2 MB beside each"
            " page.",
            default="none; of a site, the file beside the page",
        ),
    ] = None
    source_url: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="Where the measured code is, with `{commit}` for its commit.",
            default="none",
        ),
    ] = None
    metric: Metric = DEFAULT_METRIC
    is_different_allowed: Annotated[
        bool,
        Option(
            name="allow-different",
            help="Show two studies that are not comparable; the exit code is then 3.",
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
