"""The formats of ``report``: one entry each, here or in a plugin.

Nothing is imported here, since the help of the command line lists the names.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from results import plugins

if TYPE_CHECKING:
    from results.judging.gate_metrics import Metric
    from results.store.study_store import Store

    # Text, bytes of one file, or the content of several by their paths.
    Content = str | bytes | dict[str, bytes]


class Output(str, enum.Enum):  # Python 3.10 has no StrEnum
    """Where a format goes."""

    PAGE = "page"
    TEXT = "text"
    FILE = "file"
    FOLDER = "folder"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExportFormat:
    name: str  # As on the command line.
    output: Output  # Text goes to stdout unless a file is named.
    # ``module:function`` of the content; empty where the verb chooses.
    writer: str = ""
    takes_one: bool = False  # Whether it is for a single study.
    files: str = ""  # What is said of several files, after their number.

    def export(self, stores: Sequence[Store], metric: Metric) -> Content:
        module, _, function = self.writer.partition(":")
        content: Content = getattr(importlib.import_module(module), function)(
            stores, metric
        )
        return content


def find(name: str) -> ExportFormat | None:
    """Returns a format by name, also of a plugin (``replicator_harness.formats``)."""
    return plugins.find("formats", FORMATS, name, complain)


def complain(plugin: object) -> str:
    """Says what is wrong with what a plugin adds, or nothing."""
    wrong = plugins.complaint_of(ExportFormat, "an")(plugin)
    if wrong or not isinstance(plugin, ExportFormat):
        return wrong
    return "" if plugin.writer else "has no writer: name MODULE:FUNCTION"


_ONE, _SEVERAL = True, False
FORMATS: dict[str, ExportFormat] = {
    name: ExportFormat(
        name=name,
        output=output,
        writer=writer and f"reports.exports.exports:{writer}",
        takes_one=takes_one,
        files="log files of trials; they are no submission" * (name == "mlperf"),
    )
    for name, output, writer, takes_one in (
        ("html", Output.PAGE, "", _SEVERAL),
        ("text", Output.TEXT, "", _SEVERAL),
        ("markdown", Output.TEXT, "", _SEVERAL),
        ("json", Output.TEXT, "", _SEVERAL),
        ("csv", Output.TEXT, "csv_of_studies", _SEVERAL),
        ("zip", Output.FILE, "export_records", _ONE),
        ("mlperf", Output.FOLDER, "export_mlperf", _SEVERAL),
        ("pytest-benchmark", Output.TEXT, "pytest_benchmark", _ONE),
        (
            "github-action-benchmark",
            Output.TEXT,
            "github_action_benchmark",
            _ONE,
        ),
    )
}
"""In the order in which the help lists them."""
