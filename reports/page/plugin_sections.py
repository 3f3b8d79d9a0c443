"""Sections of the page that plugins add (``replicator_harness.sections``).

They stand after those of this project, under the name of their package: what they show
is the plugin's, and ``verify`` does not recompute it. One that fails says so in its
place, since the study is as good as without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from results import plugins

if TYPE_CHECKING:
    from collections.abc import Collection

    from reports.view.view import View
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
    """Returns the sections of all installed packages, in the order of their names.

    Args:
      view: The study.
      slugs: Those of the sections of this project.
    """
    try:
        found = plugins.installed(KIND, slugs)
    except plugins.PluginError as error:
        return [_failed(KIND, "Sections of plugins", "plugins", str(error))]
    sections = [_section(plugin, view, slugs) for plugin in found.values()]
    return [section for section in sections if section["body"]]


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
