"""Builds the report: a pure function of the store, one offline HTML file.

Sections of plugins and figures of their metrics stand after those of this project. What
fails says so in its place.
"""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from reports import output_file
from reports.page import page
from reports.page.sections import SECTIONS
from reports.view import view_store
from reports.words import brief, formats, names
from results import plugins
from results.figures import frame, scaling, trial_metrics

if TYPE_CHECKING:
    from reports.view import View
    from results.figures.trial_metrics import TrialMetric
    from results.plugins import Plugin
    from results.store.study_store import Store

PLUGINS: Final = "sections"
_PARTS: Final = ("TITLE", "SLUG", "render")


def build_report(store: Store, links: Mapping[str, str] | None = None) -> str:
    """Returns the report of a study as HTML; the same store gives the same bytes.

    ``links`` are above its content: addresses by their texts.
    """
    return page_of(view_store(store), links or {})


def page_of(view: View, links: Mapping[str, str]) -> str:
    sections = [
        {"slug": section.SLUG, "title": section.TITLE, "body": section.render(view)}
        for section in SECTIONS
    ]
    sections += _plugin_metrics(view, [section.SLUG for section in SECTIONS])
    document = page.render(
        "page",
        view=view,
        links=links,
        sections=[section for section in sections if section["body"]],
        title=names.title(view),
        summary=brief.verdict(view).text,
        commits=names.commits_text(view.study.cases) or "not recorded",
        names=names,
    )
    return f"{document}\n"


def render_section(slug: str, view: View) -> str:
    """Returns one section of the report as HTML, by its id; empty if it has nothing.

    Raises ValueError for an id that no section of this project has.
    """
    sections = {section.SLUG: section for section in SECTIONS}
    if slug not in sections:
        raise ValueError(f"section {slug!r}: choose one of {', '.join(sections)}")
    return str(sections[slug].render(view))


def write_report(store: Store, path: pathlib.Path | None = None) -> pathlib.Path:
    """Writes the report and returns its path (default: in the study's directory)."""
    path = store.report_path if path is None else pathlib.Path(path)
    output_file.write(path, build_report(store), what="report")
    return path


def complain(plugin: object) -> str:
    """Says what is wrong with what a plugin adds, or nothing."""
    for part in _PARTS:
        if not hasattr(plugin, part):
            listed = ", ".join(_PARTS)
            return f"has no {part}, and has to be a module or an object with {listed}"
    return ""


def _plugin_metrics(view: View, slugs: Collection[str]) -> list[dict[str, Any]]:
    """Returns figures, then sections, of all installed packages, in order of names."""
    try:
        installed = plugins.installed(PLUGINS, slugs)
    except plugins.PluginError as error:
        return [_failed(PLUGINS, "Sections of plugins", "plugins", str(error))]
    sections = [_section(plugin, view, slugs) for plugin in installed.values()]
    return [*_figures(view), *sections]


def _figures(view: View) -> Iterator[dict[str, Any]]:
    """Yields a table for each package with metrics: their means, with intervals."""
    try:
        packages: dict[str, list[TrialMetric]] = {}
        for metric in trial_metrics.installed(frame.TRIAL_COLUMNS):
            plugin = plugins.used(trial_metrics.KIND, metric.name)
            packages.setdefault(plugin.distribution if plugin else "", []).append(
                metric
            )
        for number, (package, metrics) in enumerate(packages.items(), start=1):
            rows = [_row(view, metric) for metric in metrics]
            yield {
                "slug": f"figures-{number}",
                "title": f"Figures of {package}",
                "body": page.render("plugin_figures", view=view, rows=rows),
                "plugin": package,
            }
    except plugins.PluginError as error:
        yield _failed("figures", "Figures of plugins", trial_metrics.KIND, str(error))


def _row(view: View, metric: TrialMetric) -> dict[str, Any]:
    cells = [scaling.case_cell(case, metric.name) for case in view.measured_cases]
    shown = [
        (*formats.measured(cell.estimate, metric.unit), f"n = {cell.estimate.n}")
        if cell.estimate
        else (formats.ABSENT, cell.why_not, "")
        for cell in cells
    ]
    return {"title": metric.title, "cells": shown}


def _section(plugin: Plugin, view: View, slugs: Collection[str]) -> dict[str, Any]:
    title = f"{plugin.name} ({plugin.distribution})"
    try:
        section = plugins.load(plugin, slugs, complain)
        title = f"{section.TITLE} ({plugin.distribution})"
        return {
            "slug": section.SLUG,
            "title": title,
            "body": section.render(view),
            "plugin": plugin.distribution,
        }
    except plugins.PluginError as error:
        text = str(error)
    except Exception as error:  # noqa: BLE001 - of anybody's code
        text = f"{plugin.what} raises an error: {plugins.said(error)}"
    return _failed(plugin.name, title, plugin.distribution, text)


def _failed(slug: str, title: str, package: str, text: str) -> dict[str, Any]:
    body = Markup("<p>This section is missing: {}.</p>").format(escape(text))
    return {"slug": slug, "title": title, "body": body, "plugin": package}
