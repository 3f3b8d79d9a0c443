"""What packages of others add: objects by ``MODULE:NAME``, or by an entry point.

An entry point of ``replicator_harness.<kind>`` stands in a catalogue as if it were of
this project. Metadata of packages are read where a name is unknown or names are listed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from results.errors import ResultsError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    # Says what is wrong with an object, or nothing.
    Complaint = Callable[[Any], str]

T = TypeVar("T")

PREFIX: Final = "replicator_harness."
KINDS: Final = {
    "workloads": "workload",
    "backends": "backend",
    "launchers": "launcher",
    "metrics": "metric",
    "sections": "section",
    "formats": "format",
}
"""The groups without their prefix, and what one entry is called."""
API_VERSION: Final = 1
API_NAME: Final = "HARNESS_API"
"""A module that says which version of these interfaces it was written for; 1 if not."""
OURS: Final = ("harness", "replicator", "reports", "results", "workloads")
_REFERENCE: Final = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
_HEAVY: Final = "tensorflow"
_MOST_SAID: Final = 200


class PluginError(ResultsError):
    """A plugin that cannot be used; exit code 2."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plugin:
    """An object of a package of others, not imported yet."""

    kind: str  # One of ``KINDS``.
    name: str  # Of the entry point; that of the object otherwise.
    target: str  # ``module:NAME``.
    # Name and version of its package; empty if it is a module of the current folder.
    distribution: str = ""

    @property
    def what(self) -> str:
        source = f" of {self.distribution}" if self.distribution else ""
        return f"{KINDS[self.kind]} {self.name!r}{source}"

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]


_used: dict[tuple[str, str], Plugin] = {}
_folders: list[str] = []


def used(kind: str, name: str) -> Plugin | None:
    """Returns what an entry of a catalogue came from; None for one of this project."""
    return _used.get((kind, name))


def folders() -> tuple[str, ...]:
    """Folders that modules were taken from, which processes of trials need as well."""
    return tuple(_folders)


def installed(kind: str, built_in: Collection[str]) -> dict[str, Plugin]:
    """Returns the entry points of a kind, by name; imports none."""
    by_name: dict[str, Plugin] = {}
    for plugin in _entry_points(kind):
        if plugin.name in built_in:
            raise PluginError(
                f"{plugin.what} has the name of a {KINDS[kind]} of this project, which"
                " stays what it is; choose another name in the entry points of that"
                " package, or uninstall it"
            )
        other = by_name.get(plugin.name)
        if other is not None:
            raise PluginError(
                f"{KINDS[kind]} {plugin.name!r} is in two packages,"
                f" {other.distribution} ({other.target}) and {plugin.distribution}"
                f" ({plugin.target}); uninstall one of the two, or give MODULE:NAME"
            )
        by_name[plugin.name] = plugin
    return by_name


def _entry_points(kind: str) -> list[Plugin]:
    import importlib.metadata

    unique: dict[Plugin, None] = {}
    for entry in importlib.metadata.entry_points(group=f"{PREFIX}{kind}"):
        distribution = entry.dist
        plugin = Plugin(
            kind=kind,
            name=entry.name,
            target=entry.value,
            distribution=f"{distribution.name} {distribution.version}"
            if distribution
            else "an unnamed package",
        )
        unique[plugin] = None  # a path that is listed twice shows a package twice
    return sorted(unique, key=lambda plugin: (plugin.name, plugin.distribution))


def find(
    kind: str,
    table: dict[str, T],
    text: str,
    complain: Complaint,
    folder: Path | None = None,
) -> T | None:
    """Returns an entry of a catalogue to which plugins add; it stays in the table."""
    if text in table:
        return table[text]
    built_in = built_in_of(kind, table)
    plugin = _used_by_target(kind, text)
    if plugin is None and ".py:" in text:
        module = text.replace(".py:", ":").replace("/", ".").lstrip(".")
        raise PluginError(
            f"{KINDS[kind]} {text!r} names a file; name its module, as for 'python"
            f" -m': {module}"
        )
    if plugin is None and _REFERENCE.fullmatch(text):
        named = (each for each in _entry_points(kind) if each.target == text)
        plugin = next(named, None)
        if plugin is None:
            if folder is not None:
                use_folder(folder)
            plugin = Plugin(kind=kind, name=text, target=text)
    plugin = plugin or installed(kind, built_in).get(text)
    if plugin is None:
        return None
    plugin_object: T = load(plugin, built_in, complain)
    table[name_of(plugin_object)] = plugin_object
    return plugin_object


def canonical(kind: str, text: str) -> str:
    """Returns the name in its catalogue of what was found as ``MODULE:NAME``."""
    plugin = _used_by_target(kind, text)
    return text if plugin is None else plugin.name


def built_in_of(kind: str, table: Iterable[str]) -> list[str]:
    """Returns the names in a catalogue that no plugin has added."""
    return [name for name in table if used(kind, name) is None]


def names(kind: str, table: Mapping[str, object]) -> list[str]:
    return [*dict.fromkeys((*table, *installed(kind, built_in_of(kind, table))))]


def _used_by_target(kind: str, text: str) -> Plugin | None:
    for (of_kind, _), plugin in _used.items():
        if of_kind == kind and plugin.target == text:
            return plugin
    return None


def use_folder(folder: Path) -> None:
    """Makes modules of a folder importable; our own packages stay those that run."""
    text = str(folder)
    if text in _folders:
        return
    for name in OURS:
        importlib.import_module(name)
    sys.path.insert(0, text)
    _folders.append(text)
    importlib.invalidate_caches()


def load(plugin: Plugin, built_in: Collection[str], complain: Complaint) -> Any:
    is_new = _HEAVY not in sys.modules
    module = _imported(plugin)
    attribute = plugin.target.partition(":")[2]
    version = getattr(module, API_NAME, 1)
    if version != API_VERSION:
        raise PluginError(
            f"{plugin.what} was written for version {version!r} of the interfaces"
            f" ({API_NAME} in {plugin.module}), and this is version {API_VERSION};"
            " install the release of that package, or of the harness, that fits"
        )
    try:
        plugin_object = getattr(module, attribute) if attribute else module
    except AttributeError:
        others = ", ".join(
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and not complain(value)
        )
        raise PluginError(
            f"{plugin.what}: module {plugin.module!r} has no {attribute!r}"
            f"{f'; it has {others}' if others else ''}; check the spelling"
        ) from None
    wrong = complain(plugin_object)
    if wrong:
        raise PluginError(
            f"{plugin.what}: {plugin.target} {wrong}; docs/howto/plugin.md has an"
            f" example of a {KINDS[plugin.kind]}"
        )
    if is_new and _HEAVY in sys.modules:
        raise PluginError(
            f"{plugin.what}: importing {plugin.module} imports TensorFlow, which the"
            " planner must not; import it within the functions that need it, or in a"
            " module of its own"
        )
    return _under_its_name(plugin, plugin_object, built_in)


def _under_its_name(
    plugin: Plugin, plugin_object: Any, built_in: Collection[str]
) -> Any:
    name = name_of(plugin_object)
    if name in built_in and used(plugin.kind, name) is None:
        raise PluginError(
            f"{plugin.what} calls itself {name!r}, which is a {KINDS[plugin.kind]} of"
            " this project; choose another name for it"
        )
    other = used(plugin.kind, name)
    if other is not None and other.target != plugin.target:
        raise PluginError(
            f"{plugin.what} calls itself {name!r}, as {other.target} does; choose"
            " another name for one of the two"
        )
    if plugin.name not in (name, plugin.target):
        raise PluginError(
            f"{plugin.what} calls itself {name!r}; give its entry point the same name"
        )
    _used[plugin.kind, name] = dataclasses.replace(plugin, name=name)
    return plugin_object


def name_of(plugin_object: Any) -> str:
    """Returns the name of an object in its catalogue; of a section, its slug."""
    return str(
        getattr(plugin_object, "name", None) or getattr(plugin_object, "SLUG", "")
    )


def _imported(plugin: Plugin) -> Any:
    try:
        return importlib.import_module(plugin.module)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if plugin.module != missing and not plugin.module.startswith(f"{missing}."):
            raise PluginError(
                f"{plugin.what} needs the module {missing!r}, which is not installed;"
                " install it in the environment of the harness"
            ) from error
        top = plugin.module.partition(".")[0]
        if top in OURS:
            advice = (
                f"{top!r} is a package of the harness; give yours another name, since a"
                " name can mean one package only"
            )
        elif plugin.distribution:
            advice = "its package is damaged: install it again"
        else:
            advice = (
                "it is looked for in the current folder and among installed packages;"
                " check the spelling, or go to its folder"
            )
        raise PluginError(
            f"{plugin.what}: there is no module {missing!r}: {advice}"
        ) from None
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{plugin.what} raises an error when it is imported: {said(error)}; repair"
            f" {plugin.module}"
            + (", or uninstall its package" if plugin.distribution else "")
        ) from error


def said(error: BaseException) -> str:
    """Returns an error with the place it came from, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text[:_MOST_SAID]}{where}"


def complaint_of(kind: type, article: str = "a") -> Complaint:
    def complain(plugin_object: Any) -> str:
        if isinstance(plugin_object, kind):
            return ""
        return (
            f"is of type {type(plugin_object).__name__}, and has to be {article}"
            f" {kind.__module__}.{kind.__qualname__}"
        )

    return complain


def not_covered(stated: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Returns what nobody can check of a study's plugins; it imports none of them."""
    import importlib.metadata

    texts = []
    for name, facts in stated.items():
        package = str(facts.get("package", ""))
        here = "which is not installed here"
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
            package_name, _, version = package.rpartition(" ")
            installed = importlib.metadata.version(package_name)
            here = "which is installed here"
            if installed != version:
                here = f"of which version {installed} is installed here"
        texts.append(
            f"{name} is a plugin ({facts.get('object', '')}, {package}, files"
            f" {facts.get('files', '')}), {here}: its figures are recomputed,"
            " and its code is not looked at"
        )
    return texts
