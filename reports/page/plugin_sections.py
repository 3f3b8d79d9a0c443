"""What plugins add to the page: sections of theirs, and the figures of their metrics.

Both stand after the sections of this project, under the name of their package: what
they show is the plugin's, and ``verify`` does not recompute it. What fails says so in
its place, since the study is as good as without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from reports.page import page
from reports.words import formats
from results import plugins
from results.figures import frame, scaling, trial_metrics

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from reports.view.view import View
    from results.figures.trial_metrics import TrialMetric
    from results.plugins import Plugin

KIND: Final = "sections"
_PARTS: Final = ("TITLE", "SLUG", "render")


def complain(found: object) -> str:
    """Says what is wrong with what a plugin adds, or nothing."""
    missing = [part for part in _PARTS if not hasattr(found, part)]
    if not missing:
        return ""
    return f"has no {missing[0]}, and has to be a module or an object with {_listed()}"


def _listed() -> str:
    return ", ".join(_PARTS)


def render(view: View, slugs: Collection[str]) -> list[dict[str, Any]]:
    """Returns figures, then sections, of all installed packages, in order of names."""
    try:
        found = plugins.installed(KIND, slugs)
    except plugins.PluginError as error:
        return [_failed(KIND, "Sections of plugins", "plugins", str(error))]
    sections = [_section(plugin, view, slugs) for plugin in found.values()]
    sections = [*_figures(view), *sections]
    return [section for section in sections if section["body"]]


def _figures(view: View) -> Iterator[dict[str, Any]]:
    """Yields a table for each package with metrics: their means, with intervals."""
    try:
        found = trial_metrics.installed(frame.TRIAL_COLUMNS)
        packages: dict[str, list[TrialMetric]] = {}
        for metric in found:
            plugin = plugins.used(trial_metrics.KIND, metric.name)
            packages.setdefault(plugin.distribution if plugin else "", []).append(
                metric
            )
        for number, (package, metrics) in enumerate(packages.items(), start=1):
            yield {
                "slug": f"figures-{number}",
                "title": f"Figures of {package}",
                "body": page.render(
                    "plugin_figures", view=view, rows=_rows(view, metrics)
                ),
                "plugin": package,
            }
    except plugins.PluginError as error:
        yield _failed("figures", "Figures of plugins", trial_metrics.KIND, str(error))


def _rows(view: View, metrics: list[TrialMetric]) -> list[dict[str, Any]]:
    """Returns a row for each metric: a cell for each measured case."""
    rows = []
    for metric in metrics:
        cells = [scaling.of_trials(case, metric.name) for case in view.measured_cases]
        shown = [
            (*formats.run_score(cell.estimate, metric.unit), f"n = {cell.estimate.n}")
            if cell.estimate
            else (formats.ABSENT, cell.why_not, "")
            for cell in cells
        ]
        rows.append({"title": metric.title, "cells": shown})
    return rows


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
        return _failed(plugin.name, title, plugin.distribution, str(error))
    except Exception as error:  # noqa: BLE001 - of anybody's code
        text = f"{plugin.what} raises an error: {plugins.said(error)}"
        return _failed(plugin.name, title, plugin.distribution, text)


def _failed(slug: str, title: str, package: str, text: str) -> dict[str, Any]:
    body = Markup("<p>This section is missing: {}.</p>").format(escape(text))
    return {"slug": slug, "title": title, "body": body, "plugin": package}
