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
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from results.errors import ResultsError

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

    def error(self, text: str) -> PluginError:
        return PluginError(f"{self.what}{text}")


_used: dict[tuple[str, str], Plugin] = {}
_folders: list[str] = []


def used(kind: str, name: str) -> Plugin | None:
    """Returns what an entry of a catalogue came from; None for one of this project."""
    return _used.get((kind, name))


def folders() -> tuple[str, ...]:
    """Folders that modules were taken from, which processes of trials need as well."""
    return tuple(_folders)


def _entry_points(kind: str) -> list[Plugin]:
    import importlib.metadata

    unique = {  # a path that is listed twice shows a package twice
        Plugin(
            kind=kind,
            name=entry.name,
            target=entry.value,
            distribution=f"{entry.dist.name} {entry.dist.version}"
            if entry.dist
            else "an unnamed package",
        )
        for entry in importlib.metadata.entry_points(group=f"{PREFIX}{kind}")
    }
    return sorted(unique, key=lambda plugin: (plugin.name, plugin.distribution))


def installed(kind: str, built_in: Collection[str]) -> dict[str, Plugin]:
    """Returns the entry points of a kind, by name; imports none."""
    by_name: dict[str, Plugin] = {}
    for plugin in _entry_points(kind):
        if plugin.name in built_in:
            raise plugin.error(
                f" has the name of a {KINDS[kind]} of this project, which stays what it"
                " is; choose another name in the entry points of that package, or"
                " uninstall it"
            )
        other = by_name.setdefault(plugin.name, plugin)
        if other is not plugin:
            raise PluginError(
                f"{KINDS[kind]} {plugin.name!r} is in two packages,"
                f" {other.distribution} ({other.target}) and {plugin.distribution}"
                f" ({plugin.target}); uninstall one of the two, or give MODULE:NAME"
            )
    return by_name


def built_in_of(kind: str, table: Iterable[str]) -> list[str]:
    """Returns the names in a catalogue that no plugin has added."""
    return [name for name in table if used(kind, name) is None]


def names(kind: str, table: Mapping[str, object]) -> list[str]:
    return [*dict.fromkeys((*table, *installed(kind, built_in_of(kind, table))))]


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
    same = (p for p in _used.values() if (p.kind, p.target) == (kind, text))
    plugin = next(same, None)
    if plugin is None and ".py:" in text:
        module = text.replace(".py:", ":").replace("/", ".").lstrip(".")
        raise PluginError(
            f"{KINDS[kind]} {text!r} names a file; name its module, as for 'python"
            f" -m': {module}"
        )
    if plugin is None and _REFERENCE.fullmatch(text):
        plugin = next((one for one in _entry_points(kind) if one.target == text), None)
        if plugin is None:
            if folder is not None:
                _use_folder(str(folder))
            plugin = Plugin(kind=kind, name=text, target=text)
    plugin = plugin or installed(kind, built_in).get(text)
    if plugin is None:
        return None
    added: T = load(plugin, built_in, complain)
    table[_name_of(added)] = added
    return added


def _use_folder(folder: str) -> None:
    """Makes modules of a folder importable; our own packages stay those that run."""
    if folder not in _folders:
        for name in OURS:
            importlib.import_module(name)
        sys.path.insert(0, folder)
        _folders.append(folder)
        importlib.invalidate_caches()


def _name_of(added: Any) -> str:
    """Returns the name of an object in its catalogue; of a section, its slug."""
    return str(getattr(added, "name", None) or getattr(added, "SLUG", ""))


def load(plugin: Plugin, built_in: Collection[str], complain: Complaint) -> Any:
    is_new = _HEAVY not in sys.modules
    module, attribute = _imported(plugin), plugin.target.partition(":")[2]
    version = getattr(module, API_NAME, 1)
    if version != API_VERSION:
        raise plugin.error(
            f" was written for version {version!r} of the interfaces ({API_NAME} in"
            f" {plugin.module}), and this is version {API_VERSION}; install the release"
            " of that package, or of the harness, that fits"
        )
    if attribute and not hasattr(module, attribute):
        public = ((n, of) for n, of in vars(module).items() if not n.startswith("_"))
        others = ", ".join(name for name, value in public if not complain(value))
        raise plugin.error(
            f": module {plugin.module!r} has no {attribute!r}"
            f"{f'; it has {others}' if others else ''}; check the spelling"
        )
    added = getattr(module, attribute) if attribute else module
    if wrong := complain(added):
        raise plugin.error(
            f": {plugin.target} {wrong}; docs/howto/plugin.md has an example of a"
            f" {KINDS[plugin.kind]}"
        )
    if is_new and _HEAVY in sys.modules:
        raise plugin.error(
            f": importing {plugin.module} imports TensorFlow, which the planner must"
            " not; import it within the functions that need it, or in a module of its"
            " own"
        )
    name = _name_of(added)
    other = used(plugin.kind, name)
    calls = f" calls itself {name!r}"
    if other is None and name in built_in:
        raise plugin.error(
            f"{calls}, which is a {KINDS[plugin.kind]} of this project; choose another"
            " name for it"
        )
    if other is not None and other.target != plugin.target:
        raise plugin.error(
            f"{calls}, as {other.target} does; choose another name for one of the two"
        )
    if plugin.name not in (name, plugin.target):
        raise plugin.error(f"{calls}; give its entry point the same name")
    _used[plugin.kind, name] = dataclasses.replace(plugin, name=name)
    return added


def _imported(plugin: Plugin) -> Any:
    try:
        return importlib.import_module(plugin.module)
    except ModuleNotFoundError as error:
        missing, top = str(error.name), plugin.module.partition(".")[0]
        if not f"{plugin.module}.".startswith(f"{missing}."):
            raise plugin.error(
                f" needs the module {missing!r}, which is not installed; install it in"
                " the environment of the harness"
            ) from error
        advice = (
            "it is looked for in the current folder and among installed packages; check"
            " the spelling, or go to its folder"
        )
        if top in OURS:
            advice = (
                f"{top!r} is a package of the harness; give yours another name, since a"
                " name can mean one package only"
            )
        elif plugin.distribution:
            advice = "its package is damaged: install it again"
        raise plugin.error(f": there is no module {missing!r}: {advice}") from None
    except (Exception, SystemExit) as error:
        uninstall = ", or uninstall its package" if plugin.distribution else ""
        raise plugin.error(
            f" raises an error when it is imported: {said(error)}; repair"
            f" {plugin.module}{uninstall}"
        ) from error


def said(error: BaseException) -> str:
    """Returns an error with the place it came from, in one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text[:_MOST_SAID]} ({Path(last.filename).name}, line {last.lineno})"


def complaint_of(kind: type, article: str = "a") -> Complaint:
    def complain(added: Any) -> str:
        if isinstance(added, kind):
            return ""
        wanted = f"{article} {kind.__module__}.{kind.__qualname__}"
        return f"is of type {type(added).__name__}, and has to be {wanted}"

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
            found = importlib.metadata.version(package_name)
            same = f"of which version {found} is installed here"
            here = "which is installed here" if found == version else same
        texts.append(
            f"{name} is a plugin ({facts.get('object', '')}, {package}, files"
            f" {facts.get('files', '')}), {here}: its figures are recomputed,"
            " and its code is not looked at"
        )
    return texts
