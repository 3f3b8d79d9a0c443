"""All plugins that are installed, of every kind, and what is wrong with them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from harness import catalog
from harness.launch import catalog as launch_catalog
from reports.exports import export_formats
from reports.page import plugin_sections
from reports.page.sections import SECTIONS
from results import plugins
from results.figures import frame, trial_metrics

if TYPE_CHECKING:
    from collections.abc import Collection

    from results.plugins import Complaint, Plugin


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """An entry point, and what it is."""

    # The entry point; None where those of a kind contradict each other.
    plugin: Plugin | None
    found: Any = None  # Its object; None where there is a problem.
    problem: str = ""  # Why it cannot be used; empty if it can.

    def row(self) -> dict[str, Any]:
        """Returns the facts of one that can be used, as they are listed."""
        assert self.plugin is not None
        title = next(
            str(getattr(self.found, name))
            for name in ("description", "title", "TITLE", "summary", "output")
            if hasattr(self.found, name)
        )
        return {
            "name": self.plugin.name,
            "title": title,
            "kind": plugins.KINDS[self.plugin.kind],
            "package": self.plugin.distribution,
            "object": self.plugin.target,
        }


def tables() -> dict[str, tuple[Collection[str], Complaint]]:
    """Returns the names that this project has of each kind, and the check of others."""
    return {
        catalog.WORKLOAD: (catalog.WORKLOADS, catalog.complain(catalog.WORKLOAD)),
        catalog.BACKEND: (catalog.BACKENDS, catalog.complain(catalog.BACKEND)),
        "launchers": (launch_catalog.LAUNCHERS, launch_catalog.complain),
        trial_metrics.KIND: (frame.TRIAL_COLUMNS, trial_metrics.complain),
        plugin_sections.KIND: (
            [section.SLUG for section in SECTIONS],
            plugin_sections.complain,
        ),
        "formats": (export_formats.FORMATS, export_formats.complain),
    }


def read() -> list[Listed]:
    """Imports every plugin that is installed; the catalogues have them then."""
    found: list[Listed] = []
    for kind, (table, complain) in tables().items():
        built_in = plugins.built_in_of(kind, table)
        try:
            entries = plugins.installed(kind, built_in)
        except plugins.PluginError as error:
            found.append(Listed(plugin=None, problem=str(error)))
            continue
        for name, plugin in entries.items():
            try:
                loaded = plugins.load(plugin, built_in, complain)
            except plugins.PluginError as error:
                found.append(Listed(plugin=plugin, problem=str(error)))
                continue
            if isinstance(table, dict):
                table.setdefault(name, loaded)
            found.append(Listed(plugin=plugin, found=loaded))
    return found
