"""What an object of a plugin must be before anything is measured with it.

Each check returns, or raises ``NonconformingError`` with the line to repair.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness import catalog
from harness.conformance import every_plugin
from harness.conformance.checks import NonconformingError
from harness.errors import HarnessError
from harness.options.option import Options
from harness.sources import plugin_code
from results import plugins
from results.plugins import Plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

VARIABLE: Final = "HARNESS_PLUGINS"
"""Names objects that no package has as an entry point: ``KIND=MODULE:NAME,...``."""
STARTS: Final = ("start", "submit", "render")
"""A launcher does one of these, or nothing."""
_SLUG: Final = re.compile(r"[a-z][a-z0-9-]*")


def named() -> list[Plugin]:
    """Returns the plugins of installed packages, then those that a variable names.

    Raises:
      PluginError: Two packages contradict each other.
      NonconformingError: The variable is not what it has to be.
    """
    found: list[Plugin] = []
    for kind, (table, _) in every_plugin.tables().items():
        built_in = plugins.built_in_of(kind, table)
        found += plugins.installed(kind, built_in).values()
    for text in filter(None, os.environ.get(VARIABLE, "").split(",")):
        kind, _, target = text.partition("=")
        if kind not in plugins.KINDS or not target:
            raise NonconformingError(
                f"{VARIABLE} has {text!r}, and needs KIND=MODULE:NAME, where KIND is"
                f" one of {', '.join(plugins.KINDS)}"
            )
        plugins.use_folder(Path.cwd())
        found.append(Plugin(kind=kind, name=target, target=target))
    return found


def load(plugin: Plugin) -> Any:
    """Returns the object; the catalogue has it then.

    Raises:
      NonconformingError: It cannot be used.
    """
    table, complain = every_plugin.tables()[plugin.kind]
    try:
        found = plugins.load(plugin, plugins.built_in_of(plugin.kind, table), complain)
    except plugins.PluginError as error:
        raise NonconformingError(f"{place_of(plugin)}{error}") from None
    if isinstance(table, dict):
        table.setdefault(plugins.name_of(found), found)
    return found


def describe(plugin: Plugin, found: Any) -> None:
    """Checks the facts that an object states about itself.

    Args:
      plugin: Where it is from.
      found: The object.

    Raises:
      NonconformingError: One of them is not as it has to be.
    """
    wrong = _DESCRIBED[plugin.kind](found)
    if wrong:
        raise NonconformingError(f"{place_of(plugin)}{plugin.what} {wrong}")
    own = plugins.used(plugin.kind, plugins.name_of(found))
    if own is None or not plugin_code.files(own):
        raise NonconformingError(
            f"{place_of(plugin)}{plugin.what} has no file from which an edit would be"
            " known; give it a module of a package"
        )


def place_of(plugin: Plugin, name: str = "") -> str:
    """Returns file and line of an object, to begin a message; empty if not found.

    Args:
      plugin: Its module is read, and not imported.
      name: Another top-level name of that module.
    """
    module, _, attribute = plugin.target.partition(":")
    try:
        spec = importlib.util.find_spec(module)
        path = Path(str(spec.origin)) if spec else None
        body = ast.parse(path.read_text(encoding="utf-8")).body if path else []
    except (ImportError, OSError, SyntaxError, ValueError):
        return ""
    line = 1
    for node in body:
        targets = [*getattr(node, "targets", ()), getattr(node, "target", None)]
        names = [getattr(of, "id", None) for of in targets]
        if (name or attribute) in (*names, getattr(node, "name", None)):
            line = node.lineno
    return f"{path.name}:{line}: " if path else ""


def place_in(plugin: Plugin, error: BaseException) -> str:
    """Returns file and line of the plugin that an error came from, as ``place_of``."""
    own = {str(path) for path in plugin_code.files(plugin).values()}
    frames = traceback.extract_tb(error.__traceback__)
    lines = [of for of in frames if of.filename in own]
    if not lines:
        return place_of(plugin)
    return f"{Path(lines[-1].filename).name}:{lines[-1].lineno}: "


def _workload(info: Any) -> str:
    presets = {preset.name: preset for preset in info.presets}
    if not presets or len(presets) != len(info.presets):
        return "needs presets, each with a name of its own"
    if info.default_preset not in presets:
        known = ", ".join(presets)
        return f"has default_preset={info.default_preset!r}, and presets {known}"
    if not _is_there(info.module):
        return f"has module={info.module!r}, and there is no such module"
    wrong = next(filter(None, (_preset(info, of) for of in presets.values())), "")
    names = [metric.name for metric in catalog.metrics(info)]
    twice = {name for name in names if names.count(name) > 1}
    if twice and not wrong:
        wrong = f"has METRICS with {min(twice)!r} twice in {info.metrics_module}"
    return wrong or _empty(info, "version", "example_unit", "description")


def _preset(info: Any, preset: Any) -> str:
    try:
        catalog.check_options(info, preset.name, preset.options)
        if preset.data in info.builtin_data:
            catalog.check_data(info, preset.data)
    except HarnessError as error:
        return f"does not take its own preset {preset.name!r}: {error}"
    for count in ("per_replica_batch_size", "num_warmup_steps", "num_measured_steps"):
        if getattr(preset, count) < 1:
            return f"has preset {preset.name!r} with {count} below 1"
    return ""


def _backend(info: Any) -> str:
    module, _, name = info.target.partition(":")
    if not name or not _is_there(module):
        return f"has target={info.target!r}, and needs MODULE:CLASS that there is"
    without = [name for name, why in info.lacks.items() if not why]
    if without:
        return f"lacks {without[0]!r} without a reason that a user can act on"
    return _empty(info, "kind", "description")


def _launcher(info: Any) -> str:
    if not any(info.can(does) for does in STARTS):
        return f"does nothing: define one of {', '.join(STARTS)}"
    for name in ("options", "file_options"):
        if not issubclass(getattr(info, name), Options):
            of = f"{Options.__module__}.{Options.__qualname__}"
            return f"has {name}, which has to be a subclass of {of}"
    return _empty(info, "summary")


def _metric(found: Any) -> str:
    if not callable(found.of):
        return "has no function 'of'"
    return _empty(found, "title", "unit")


def _section(found: Any) -> str:
    if not _SLUG.fullmatch(str(found.SLUG)):
        return f"has SLUG={found.SLUG!r}: use small letters, digits and -"
    return _empty(found, "TITLE")


def _format(found: Any) -> str:
    module, _, name = found.writer.partition(":")
    try:
        writer = getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError):  # the latter of an empty name
        writer = None
    if not callable(writer):
        return f"has writer={found.writer!r}, and needs MODULE:FUNCTION that there is"
    return ""


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _empty(found: Any, *names: str) -> str:
    missing: Collection[str] = [name for name in names if not getattr(found, name)]
    return f"has an empty {min(missing)}" if missing else ""


_DESCRIBED: Final[dict[str, Callable[[Any], str]]] = {
    "workloads": _workload,
    "backends": _backend,
    "launchers": _launcher,
    "metrics": _metric,
    "sections": _section,
    "formats": _format,
}
