"""What tells one state of a plugin from another: its package, version and files.

The digest of its files is part of the code digest of the trials that run it, and of the
plan, so that a study that is not resumed says what differs. A plugin of an installed
package has the files of that package; one of the current folder those of its package,
or its module, and every module of that folder that they import.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness import catalog
from harness.errors import DifferentStudyError, PlanError
from harness.sources import source_code
from results import plugins

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from results.plugins import Plugin
    from results.records.models import Plan, PlannedTrial

_MODULES: Final = (
    "module",
    "config_module",
    "metrics_module",
    "data_module",
    "machine_module",
    "target",
)
"""Attributes by which a workload or a backend names modules."""
_MOST_BYTES: Final = 2**20
"""Of a file that is not Python; larger ones count by their size."""
_FOLDER: Final = "not an installed package"


def of_plugin(plugin: Plugin) -> dict[str, str]:
    """Returns what tells a plugin from another state of it, by name."""
    found = files(plugin)
    hasher = hashlib.blake2b(digest_size=8)
    for name, path in sorted(found.items()):
        hasher.update(f"{name} {_digest(path)}\0".encode())
    return {
        "object": plugin.target,
        "package": plugin.distribution or _FOLDER,
        "files": f"{len(found)} ({hasher.hexdigest()})",
    }


def of_study(
    trials: Iterable[PlannedTrial], launcher: str
) -> dict[str, dict[str, str]]:
    """Returns the identity of every plugin that a study has, by kind and name."""
    names = {
        *((catalog.WORKLOAD, trial.spec.workload) for trial in trials),
        *((catalog.BACKEND, trial.spec.backend) for trial in trials),
        ("launchers", launcher),
    }
    used = [plugins.used(*name) for name in sorted(names)]
    return {
        f"{plugins.KINDS[of.kind]} {of.name}": of_plugin(of)
        for of in used
        if of is not None
    }


def of_trial(workload: str, backend: str) -> dict[str, str]:
    """Returns a fingerprint of each plugin of a trial, by its name in messages."""
    used = (
        plugins.used(catalog.WORKLOAD, workload),
        plugins.used(catalog.BACKEND, backend),
    )
    return {
        f"plugin {plugins.KINDS[of.kind]} {of.name}": " ".join(of_plugin(of).values())
        for of in used
        if of is not None
    }


def references(workload: str, backend: str) -> set[str]:
    """Returns the dotted names that the plugins of a trial refer to."""
    found: set[str] = set()
    for kind, name in ((catalog.WORKLOAD, workload), (catalog.BACKEND, backend)):
        plugin = plugins.used(kind, name)
        if plugin is None:
            continue
        found |= set(_named(plugin))
        for path in files(plugin).values():
            if path.suffix == ".py":
                found |= _read(path)
    return found


def check(plan: Plan) -> None:
    """Checks that the plugins of a study are what they were."""
    if found := difference(plan):
        raise DifferentStudyError(
            f"study {plan.study!r} was made with another state of {found}; results of"
            " different code must not be mixed: go back to that of the study to resume"
            " it, or choose another --study"
        )


def difference(plan: Plan) -> str:
    """Returns the first part of a plugin that is not what a study had, or ""."""
    now = of_study(plan.trials, "")
    for name, planned in plan.plugins.items():
        for part, text in planned.items():
            found = now.get(name, planned)[part]
            if found != text:
                return f"{name}: {part} {text!r}, now {found!r}"
    return ""


def _named(plugin: Plugin) -> list[str]:
    """Returns the modules of a plugin: its own, and those that its facts name."""
    table: Mapping[str, object] = (
        catalog.WORKLOADS if plugin.kind == catalog.WORKLOAD else catalog.BACKENDS
    )
    info = table.get(plugin.name)
    named = [str(getattr(info, name, "")) for name in _MODULES]
    modules = [name.partition(":")[0] for name in named if name]
    return list(dict.fromkeys([plugin.module, *modules]))


def files(plugin: Plugin) -> dict[str, Path]:
    """Returns the files of a plugin, by names that do not depend on the machine."""
    found: dict[str, Path] = {}
    tops = {name.partition(".")[0] for name in _named(plugin)} - {*plugins.OURS}
    home = _origin(plugin.module.partition(".")[0])
    folder = None if home is None or plugin.distribution else home.parent
    unvisited = sorted(tops)
    while unvisited:
        origin = _origin(top := unvisited.pop())
        if origin is None:
            continue
        own = _below(top, origin)
        found |= own
        if folder is None:
            continue
        for path in own.values():
            if path.suffix != ".py":
                continue
            for name in {of.partition(".")[0] for of in _read(path)}:
                is_near = any(
                    (folder / part).is_file()
                    for part in (f"{name}.py", f"{name}/__init__.py")
                )
                is_known = name in tops or name in plugins.OURS
                if name and is_near and not is_known:
                    tops.add(name)
                    unvisited.append(name)
    return found


def _origin(top: str) -> Path | None:
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return None if spec.origin is None else Path(spec.origin)


def _below(top: str, origin: Path) -> dict[str, Path]:
    if origin.is_file():
        return {origin.name: origin}
    return {
        f"{top}/{path.relative_to(origin).as_posix()}": path
        for path in sorted(origin.rglob("*"))
        if path.is_file()
        and not path.match("*.pyc")
        and "__pycache__" not in path.parts
    }


def _digest(path: Path) -> str:
    try:
        size = path.stat().st_size
        if path.suffix != ".py" and size > _MOST_BYTES:
            return f"{size} bytes"
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _read(path: Path) -> frozenset[str]:
    """Returns what a file refers to; nothing if it is not Python after all."""
    package = ".".join(_package_of(path))
    try:
        return source_code.read(path.read_text(encoding="utf-8"), package).references
    except (SyntaxError, ValueError):
        return frozenset()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> PlanError:
    return PlanError(
        f"cannot read {str(path)!r}, which is a file of a plugin:"
        f" {error.strerror or error}; make it readable, then repeat the command"
    )


def _package_of(path: Path) -> Sequence[str]:
    parts: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return parts
