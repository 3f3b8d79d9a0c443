"""What metrics, sections and formats of plugins must make of a study."""

from __future__ import annotations

import html.parser
import importlib
from typing import TYPE_CHECKING, Any, Final

from harness.conformance.checks import NonconformingError
from harness.conformance.plugin_checks import place_in, place_of
from reports.exports.export_formats import Output
from reports.page import build
from reports.view.view import view_store
from results import plugins
from results.judging import gate_metrics
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Callable

    from results.plugins import Plugin
    from results.store.study_store import Store

KINDS: Final = ("metrics", "sections", "formats")
_VOID: Final = frozenset(("br", "col", "hr", "img", "input", "wbr"))
_LOADS: Final = ("src", "href", "srcset", "data", "action")
_TYPES: Final = {Output.TEXT: str, Output.FILE: bytes, Output.FOLDER: dict}


def check(plugin: Plugin, found: Any, store: Store) -> None:
    """Checks what an object makes of a study.

    Args:
      plugin: Where it is from.
      found: The object, which stands in the catalogue.
      store: A study with ok trials.

    Raises:
      NonconformingError: Names the line to repair.
    """
    before = _files(store)
    _MADE[plugin.kind](plugin, found, store)
    if before != _files(store):
        raise NonconformingError(
            f"{place_of(plugin)}{plugin.what} changed files of the study; read it only"
        )


def _metric(plugin: Plugin, found: Any, store: Store) -> None:
    entries = [entry for entry in load_study(store).entries if entry.is_ok]
    for entry in entries:
        first, second = (_call(plugin, found.of, entry) for _ in "12")
        if isinstance(first, bool) or not isinstance(first, (int, float)):
            raise NonconformingError(
                f"{place_of(plugin)}{plugin.what} returns {first!r} for a trial, and"
                " has to return a float; NaN where a trial has none"
            )
        _same(plugin, repr(first), repr(second))


def _section(plugin: Plugin, found: Any, store: Store) -> None:
    view = view_store(store)
    first, second = (_call(plugin, found.render, view) for _ in "12")
    if not hasattr(first, "__html__"):
        raise NonconformingError(
            f"{place_of(plugin)}{plugin.what} renders a {type(first).__name__}, and has"
            " to return what reports.page.page.render_text does, which escapes"
        )
    _same(plugin, first, second)
    parser = _Parser()
    parser.feed(str(first))
    parser.close()
    wrong = parser.wrong or (f"leaves <{parser.open[-1]}> open" if parser.open else "")
    page = build.build_report(store)
    for name in () if wrong else parser.ids:
        # Once in the page if the section is in it, and not at all otherwise.
        allowed = 1 if f'data-plugin="{plugin.distribution}"' in page else 0
        if plugin.distribution and page.count(f'id="{name}"') > allowed:
            wrong = f"has the id {name!r}, which the page has already"
    if wrong:
        place = place_of(plugin, "" if ":" in plugin.target else "render")
        raise NonconformingError(f"{place}{plugin.what} {wrong}")


def _format(plugin: Plugin, found: Any, store: Store) -> None:
    metric = gate_metrics.metric_of("throughput")
    first, second = (_call(plugin, found.export, [store], metric) for _ in "12")
    expected = _TYPES.get(found.output)
    if expected is None or not isinstance(first, expected):
        needed = "one of text, file, folder" if expected is None else expected.__name__
        raise NonconformingError(
            f"{_place_of_writer(plugin, found)}{plugin.what} returns a"
            f" {type(first).__name__} for output {found.output.value!r}, which needs"
            f" {needed}"
        )
    _same(plugin, first, second)


def _place_of_writer(plugin: Plugin, found: Any) -> str:
    module, _, name = found.writer.partition(":")
    writer = getattr(importlib.import_module(module), name)
    code = getattr(writer, "__code__", None)
    if code is None:
        return place_of(plugin)
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}: "


def _call(plugin: Plugin, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        raise NonconformingError(
            f"{place_in(plugin, error)}{plugin.what} raises an error:"
            f" {plugins.said(error)}"
        ) from error


def _same(plugin: Plugin, first: object, second: object) -> None:
    if first != second:
        raise NonconformingError(
            f"{place_of(plugin)}{plugin.what} makes something else of the same study"
            " the second time; let it depend on the records only"
        )


def _files(store: Store) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in sorted(store.root.rglob("*"))
        if path.is_file()
    }


class _Parser(html.parser.HTMLParser):
    """Looks for tags that do not match, and for what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.wrong = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._read(attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag
        self._read(attrs)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
            return
        self.wrong = self.wrong or f"closes <{tag}>, which is not the last that is open"

    def _read(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            text = value or ""
            if name == "id":
                self.ids.append(text)
            is_near = text.startswith(("#", "data:"))
            if name in _LOADS and not is_near:
                self.wrong = f"loads {text!r}; a page has to be whole by itself"


_MADE: Final = {"metrics": _metric, "sections": _section, "formats": _format}
