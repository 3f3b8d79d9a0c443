"""The digest of the code that can change a trial's numbers; part of the trial's id.

A commit instead would be new with every word of a document, and no interrupted sweep
could go on; without any of the two, code could change in the middle of a study, and its
records would be taken for repetitions.

The rule, for a trial of one workload on one backend:

- ``harness/run/trial_runner.py`` and ``relay.py``, which run a trial and a generation,
  and every module of ours that they reach: by an import anywhere in a file (those under
  ``TYPE_CHECKING`` aside), by a public name that a package loads on first use (those of
  ``replicator``, listed in its ``__init__.pyi``), or by the name of a module as a
  string, which is how processes are started (``python -m``) and how the catalogues name
  workloads and backends. Of the catalogues' entries, only those of this workload and of
  this backend are read and followed.
- Except how a process finds out its rank and the addresses of the others, in
  ``replicator/cluster/environment/``: wrong ones are a failure, and no other number.
- And except ``harness/command/``, which runs programs of the user's: their digest is
  that of ``harness/command/identity.py``.
- A workload or a backend of a plugin has no entry here: its files count by content
  (``harness/sources/plugin_code.py``), and what they refer to of ours as above.
- A lock file beside such a module belongs to it: that of the environment of a peer.

So code that plans, lists, stores or shows is excluded, and so are other workloads and
backends, and ``results/``: records have their own schema version. Comments,
docstrings and formatting are ignored. The versions of the numeric packages and
Python's minor version are included. No module is imported to compute the digest.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib.metadata
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.errors import PlanError
from harness.sources import plugin_code, source_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from harness.sources.source_code import Code
    from harness.sources.source_tree import SourceTree

START: Final = ("harness.run.trial_runner", "harness.run.relay")
RANKS: Final = "replicator.cluster.environment"
COMMANDS: Final = "harness.command"
LOCK: Final = "requirements.lock"
_PACKAGES = ("harness", "replicator", "workloads")
DISTRIBUTIONS: Final = (
    "dm-control",
    "keras",
    "mujoco",
    "numpy",
    "tensorflow",
    "tensorflow-datasets",
)
"""Packages whose version can change the numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
    """The source files of our packages."""

    root: Path  # The folder that the packages are in.
    # Contents to use in place of those on disk, by module.
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Of the packages that run it; by default those that are installed.
    versions: Mapping[str, str] | None = None

    @functools.cached_property
    def paths(self) -> Mapping[str, Path]:
        """The file of each module."""
        found = {}
        for package in _PACKAGES:
            for path in (self.root / package).rglob("*.py"):
                parts = path.relative_to(self.root).with_suffix("").parts
                found[".".join(parts).removesuffix(".__init__")] = path
        return found

    @functools.cached_property
    def public_names(self) -> Mapping[str, str]:
        """The module of each name that a package loads on first use."""
        found = {}
        for module, path in self.paths.items():
            stub = path.with_suffix(".pyi")
            if path.name == "__init__.py" and stub.exists():
                for node in ast.parse(stub.read_text(encoding="utf-8")).body:
                    if isinstance(node, ast.ImportFrom):
                        for name in node.names:
                            found[f"{module}.{name.name}"] = f"{module}.{node.module}"
        return found

    def code(self, module: str) -> Code:
        """Returns the behavior and the references of a module."""
        path = self.paths[module]
        is_package = path.name == "__init__.py"
        try:
            text = self.texts.get(module)
            if text is None:
                text = path.read_text(encoding="utf-8")
            return source_code.read(
                text, module if is_package else module.rpartition(".")[0]
            )
        except (OSError, SyntaxError, ValueError) as error:
            raise PlanError(
                f"cannot read {str(path)!r}, which is part of the code that would be"
                f" measured: {error}; fix the file, then repeat the command"
            ) from error


def of_trial(workload: str, backend: str, tree: SourceTree | None = None) -> str:
    """Returns the digest of the code that determines the numbers of a trial."""
    if tree is None:
        return _of_installed(workload, backend)
    sources = Sources(root=tree.root, versions=tree.versions)
    return of_sources(workload, backend, sources)


@functools.cache
def _of_installed(workload: str, backend: str) -> str:
    sources = Sources(root=Path(__file__).resolve().parents[2])
    return of_sources(workload, backend, sources)


def of_sources(workload: str, backend: str, sources: Sources) -> str:
    """Returns the digest of a trial in a tree of sources, 16 hex characters."""
    hasher = hashlib.blake2b(digest_size=8)
    for name, fingerprint in sorted(measured_code(workload, backend, sources).items()):
        hasher.update(f"{name} {fingerprint}\0".encode())
    versions = sources.versions
    for name in DISTRIBUTIONS:
        version = _installed(name, workload) if versions is None else versions[name]
        hasher.update(f"{name}=={version}\0".encode())
    hasher.update(f"python {sys.version_info.major}.{sys.version_info.minor}".encode())
    return hasher.hexdigest()


def _installed(name: str, workload: str) -> str:
    """Returns the version of a package that a workload needs."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise PlanError(
            f"workload {workload} needs {name}, which is not installed; install"
            " 'replicator-harness[tensorflow]', or measure a program of yours by"
            " --command"
        ) from error


def measured_code(workload: str, backend: str, sources: Sources) -> dict[str, str]:
    """Returns the fingerprints of the modules and catalogue entries in the digest."""
    wanted = {("WorkloadInfo", workload), ("BackendInfo", backend)}
    assert {kind for kind, _ in wanted} == {*source_code.ENTRY_CLASSES.values()}
    found = plugin_code.of_trial(workload, backend)
    referred = plugin_code.references(workload, backend) if found else ()
    unvisited = {*START, *_modules_of(referred, sources)}
    while unvisited:
        module = unvisited.pop()
        code = sources.code(module)
        found[module] = code.fingerprint
        lock = sources.paths[module].with_name(LOCK)
        if lock.exists():  # of a peer: versions of another environment
            text = lock.read_bytes()
            found[f"{module} lock"] = hashlib.blake2b(text, digest_size=16).hexdigest()
        references = set(code.references)
        for entry in wanted & code.entries.keys():
            found[f"{module} {' '.join(entry)}"] = code.entries[entry].fingerprint
            references |= code.entries[entry].references
        unvisited |= _modules_of(references, sources) - found.keys()
    for kind, name in sorted(wanted):
        of_plugin = f"plugin {kind.removesuffix('Info').lower()} {name}"
        if of_plugin not in found and not any(
            key.endswith(f" {kind} {name}") for key in found
        ):
            raise PlanError(
                f"no {kind} in the catalogues has the name {name!r}, so there is no"
                " code to measure; 'python -m harness list' shows those there are"
            )
    return found


def _modules_of(names: Iterable[str], sources: Sources) -> set[str]:
    """Returns the modules among dotted names, and the packages around them."""
    public = sources.public_names
    found = set()
    for name in names:
        parts = name.split(".")
        prefixes = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
        found |= {prefix for prefix in prefixes if prefix in sources.paths}
        found |= {public[prefix] for prefix in prefixes if prefix in public}
        if parts[-1] == "*":
            found |= {
                module
                for public_name, module in public.items()
                if public_name.rpartition(".")[0] == prefixes[-2]
            }
    left_out = (f"{RANKS}.", f"{COMMANDS}.")
    return {module for module in found if not f"{module}.".startswith(left_out)}
