"""The digest of the code that can change a trial's numbers; part of the trial's id.

A commit instead would be new with every word of a document, and no interrupted sweep
could go on. The digest is one for all workloads and backends. It covers ``MEASURED``:
the library, the workloads, and the rooms of the harness that place, start, run and time
a trial; what the others decide is in the spec of a trial. Comments, docstrings,
formatting and code for type checkers only are ignored. The versions of the numeric
packages and Python's minor version count. No module is imported to compute it.

The files of a plugin that a trial uses count by content. The code of an external
command has a digest of its own: ``harness/command/identity.py``.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import gc
import hashlib
import importlib.metadata
import importlib.util
import modulefinder
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness import SOURCE_ROOT, catalog
from harness.command import identity, program
from harness.errors import DifferentStudyError, PlanError
from harness.machine import machine_state
from results import plugins
from results.records.measuring import MachineState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from results.plugins import Plugin
    from results.records.models import Plan, PlannedTrial, Program
    from results.store.study_store import Store


MEASURED: Final = (
    *("replicator", "workloads", "harness/__init__.py", "harness/catalog.py"),
    *("harness/client", "harness/command", "harness/errors.py", "harness/launch"),
    *("harness/machine", "harness/options", "harness/run", "harness/trial"),
)
"""Folders and files whose code can change the numbers of a trial."""
LOCK: Final = "requirements.lock"
"""Of the environment of a peer, beside the code that runs in it."""
DISTRIBUTIONS: Final = (
    *("dm-control", "keras", "mujoco", "numpy", "tensorflow", "tensorflow-datasets"),
)
"""Packages whose version can change the numbers."""
_MODULES: Final = ("train", "program", "data_module", "machine_module", "target")
"""Attributes by which a workload or a backend of a plugin names modules."""
_MOST_BYTES: Final = 2**20
"""Of a plugin's file that is not Python; larger ones count by their size."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SourceTree:
    """A tree of our sources beside the one that runs, such as another revision."""

    revision: str  # Its name in the specs of trials.
    root: Path  # The folder that the packages are in.
    python: str = sys.executable  # The interpreter that runs it.
    # Of the packages of that interpreter that can change the numbers, or are recorded;
    # None for those of this process.
    versions: Mapping[str, str] | None = None


# Whether a name is read, written or deleted follows from its position.
_CONTEXTS: Final = frozenset((ast.Load, ast.Store, ast.Del))
_BLOCKS: Final = frozenset(("body", "orelse", "finalbody"))
_known: dict[str, tuple[int, int, str]] = {}
"""Time, size and fingerprint of each file that this process has read, by its path."""


def trial_digest(workload: str, backend: str, tree: SourceTree | None = None) -> str:
    root, versions = (SOURCE_ROOT, None) if tree is None else (tree.root, tree.versions)
    parts = {**read_once(root)}
    for kind, name in ((catalog.WORKLOAD, workload), (catalog.BACKEND, backend)):
        if plugin := plugins.used(kind, name):
            parts[_name_of(plugin)] = " ".join(plugin_facts(plugin).values())
    hasher = hashlib.blake2b(digest_size=8)
    for name, fingerprint in sorted(parts.items()):
        hasher.update(f"{name} {fingerprint}\0".encode())
    for name in DISTRIBUTIONS:
        version = _installed(name, workload) if versions is None else versions[name]
        hasher.update(f"{name}=={version}\0".encode())
    hasher.update(f"python {sys.version_info.major}.{sys.version_info.minor}".encode())
    return hasher.hexdigest()


@functools.cache
def _installed(name: str, workload: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise PlanError(
            f"workload {workload} needs {name}, which is not installed; install"
            " 'replicator-harness[tensorflow]', or measure your program by"
            " --command"
        ) from error


@functools.cache
def read_once(root: Path) -> Mapping[str, str]:
    """Returns the fingerprints of a tree as this process first saw it."""
    return read(root)


def read(root: Path) -> dict[str, str]:
    """Returns a fingerprint of each measured file, by its path below the root."""
    start = len(str(root)) + 1
    is_enabled = gc.isenabled()
    gc.disable()  # which makes parsing several times faster
    try:
        return {path[start:]: _fingerprint(path) for path in _paths(root)}
    finally:
        if is_enabled:
            gc.enable()


def _paths(root: Path) -> Iterator[str]:
    for top in MEASURED:
        if top.endswith(".py"):
            if (root / top).is_file():  # another revision may not have it
                yield f"{root}/{top}"
            continue
        for folder, folders, names in os.walk(root / top, onerror=_raise_but_missing):
            folders.sort()
            yield from (
                f"{folder}/{name}"
                for name in sorted(names)
                if name == LOCK or (name.endswith(".py") and name[0] != ".")
            )


def _raise_but_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise _unreadable(error.filename, error)


def _fingerprint(path: str) -> str:
    """Returns a digest of a file; a Python file counts by what it does."""
    try:
        facts = os.stat(path)  # noqa: PTH116 - of 600 files, before each trial
        stamp = facts.st_mtime_ns, facts.st_size
        *stamp_before, fingerprint = _known.get(path, (0, 0, ""))
        if stamp != tuple(stamp_before):
            with open(path, "rb") as file:  # noqa: PTH123 - of 600 files
                fingerprint = _digest(file.read(), path.endswith(".py"))
            _known[path] = *stamp, fingerprint
    except (OSError, SyntaxError, ValueError) as error:
        raise _unreadable(path, error) from error
    return fingerprint


@functools.cache  # two revisions share most files
def _digest(content: bytes, is_code: bool) -> str:
    if is_code:
        # ``ast.dump`` of a cleaned copy would give the same more slowly.
        parts: list[str] = []
        _add(ast.parse(content), parts.append)
        content = "\0".join(parts).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _unreadable(path: str, error: Exception) -> PlanError:
    is_read = not isinstance(error, OSError)
    return PlanError(
        f"cannot read {path!r}, which is part of the code that is measured:"
        f" {getattr(error, 'strerror', None) or error};"
        f" {'fix the file' if is_read else 'make it readable'}, then repeat the command"
    )


def _add(node: ast.AST, append: Callable[[str], None]) -> None:
    """Appends what a node is; half of all nodes are names, which are read first."""
    if isinstance(node, ast.Name):
        append(f"Name {node.id}")
        return
    append(type(node).__name__)
    for name in node._fields:
        value = getattr(node, name)
        kind = type(value)
        if kind is list:
            append("[")
            for item in _code_of(value) if name in _BLOCKS else value:
                if isinstance(item, ast.AST):
                    _add(item, append)
                else:
                    append(repr(item))
            append("]")
        elif kind is str or not isinstance(value, ast.AST):
            append(repr(value))
        elif kind not in _CONTEXTS:
            _add(value, append)


def _code_of(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields statements, without docstrings and code for type checkers only."""
    for statement in statements:
        if isinstance(statement, ast.If) and _is_for_type_checkers(statement.test):
            yield from _code_of(statement.orelse)
        elif not (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        ):
            yield statement


def _is_for_type_checkers(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def plugin_facts(plugin: Plugin) -> dict[str, str]:
    """Returns what tells a plugin from another state of it, by name."""
    paths = _files_of(plugin)
    hasher = hashlib.blake2b(digest_size=8)
    for name, path in sorted(paths.items()):
        hasher.update(f"{name} {_content_of(path)}\0".encode())
    return {
        "object": plugin.target,
        "package": plugin.distribution or "not an installed package",
        "files": f"{len(paths)} ({hasher.hexdigest()})",
    }


def plugins_of_study(
    trials: Iterable[PlannedTrial], launcher: str
) -> dict[str, dict[str, str]]:
    """Returns what tells the plugins of a study from another state, by their names."""
    names = {
        *((catalog.WORKLOAD, trial.spec.workload) for trial in trials),
        *((catalog.BACKEND, trial.spec.backend) for trial in trials),
        ("launchers", launcher),
    }
    used = [plugins.used(*name) for name in sorted(names)]
    return {_name_of(each): plugin_facts(each) for each in used if each is not None}


def changed_plugin(plan: Plan) -> str:
    now = plugins_of_study(plan.trials, "")
    for name, planned in plan.plugins.items():
        for part, text in planned.items():
            current = now.get(name, planned)[part]
            if current != text:
                return f"{name}: {part} {text!r}, now {current!r}"
    return ""


def _name_of(plugin: Plugin) -> str:
    return f"{plugins.KINDS[plugin.kind]} {plugin.name}"


def _files_of(plugin: Plugin) -> dict[str, Path]:
    table: Mapping[str, object] = (
        catalog.WORKLOADS if plugin.kind == catalog.WORKLOAD else catalog.BACKENDS
    )
    info = table.get(plugin.name)
    modules = [plugin.module, *(str(getattr(info, name, "")) for name in _MODULES)]
    tops = [re.split("[.:]", module)[0] for module in modules if module]
    files = _below(tops)
    home = _origin(tops[0])
    if home is not None and not plugin.distribution:
        files |= _below(_imported(files.values(), home.parent))
    return files


def _below(tops: Iterable[str]) -> dict[str, Path]:
    """Returns the files of modules and packages, by their place in their folder."""
    files = {}
    for top in {name.partition(".")[0] for name in tops}.difference(plugins.OURS):
        if origin := _origin(top):
            for path in origin.rglob("*") if origin.is_dir() else [origin]:
                if path.is_file() and path.suffix != ".pyc":
                    files[path.relative_to(origin.parent).as_posix()] = path
    return files


def _origin(top: str) -> Path | None:
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    origin = next(iter(spec.submodule_search_locations or ()), spec.origin)
    return None if origin is None else Path(origin)


def _imported(paths: Iterable[Path], folder: Path) -> list[str]:
    """Returns what files import from a folder, in functions as well."""
    finder = modulefinder.ModuleFinder([str(folder)])
    for path in paths:
        if path.suffix == ".py":
            try:
                finder.load_file(str(path))
            except (OSError, SyntaxError, ValueError) as error:
                raise _unreadable(str(path), error) from error
    return [*finder.modules]


def _content_of(path: Path) -> str:
    try:
        size = path.stat().st_size
        if path.suffix != ".py" and size > _MOST_BYTES:
            return f"{size} bytes"
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        raise _unreadable(str(path), error) from error


def check_code(
    plan: Plan,
    baseline: SourceTree | None = None,
    store: Store | None = None,
    program_code: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    if plan.program_code:
        left_out = [] if store is None else [store.root.parent, store.root]
        _check_program(plan, program_code, left_out)
        return
    if plugin := changed_plugin(plan):
        raise DifferentStudyError(
            f"study {plan.study!r} was made with another state of {plugin}; results of"
            " different code must not be mixed: go back to that of the study to resume"
            " it, or choose another --study"
        )
    specs = [trial.spec for trial in plan.trials]
    made_with = {(s.revision, s.workload, s.backend, s.code_digest) for s in specs}
    for revision, workload, backend, planned in sorted(made_with):
        tree = baseline if revision else None
        if revision and (tree is None or tree.revision != revision):
            raise _only_a_gate(plan, f"this tree with revision {revision!r}")
        now = trial_digest(workload, backend, tree)
        if planned != now:
            root = SOURCE_ROOT if tree is None else tree.root
            commit, is_modified = machine_state.read_source_state(root)
            state = MachineState(git_commit=commit, is_source_modified=is_modified)
            envs = [trial.env for trial in store.read().trials] if store else []
            before = [e.machine_state for e in envs if e and e.machine_state]
            measured = " and ".join(sorted({_commit(each) for each in before}))
            raise DifferentStudyError(
                f"study {plan.study!r} was made with code of"
                f" {measured or 'an unrecorded commit'} (digest {planned}); it is now"
                f" the code of {_commit(state)} (digest {now}), and results of"
                " different code must not be mixed; go back to the code of the study to"
                " resume it, or choose another --study"
            )


def _only_a_gate(plan: Plan, compared: str) -> DifferentStudyError:
    return DifferentStudyError(
        f"study {plan.study!r} compares {compared}, whose sources only a gate has;"
        " repeat the gate with its options to resume it"
    )


def _check_program(
    plan: Plan,
    program_code: Mapping[str, Mapping[str, str]] | None,
    left_out: Sequence[Path],
) -> None:
    if program_code is None:
        if len(plan.program_code) > 1:
            others = ", ".join(filter(None, plan.program_code))
            raise _only_a_gate(plan, f"this program with revision {others}")
        record, folder = _program_of(plan), Path.cwd()
        program.check_folder(record, folder)
        program_code = {
            "": identity.program_identity(record.command, folder, left_out=left_out)
        }
    for revision, planned in plan.program_code.items():
        now = program_code.get(revision)
        if now is None:
            raise DifferentStudyError(
                f"study {plan.study!r} compares with revision {revision!r}, which is"
                f" not measured now; choose another --study"
            )
        differences = identity.differences(planned, now)
        if differences:
            raise DifferentStudyError(
                f"study {plan.study!r} was made with another program: {differences[0]}"
                f"{_more(differences)}; results of different code must not be mixed: go"
                " back to that of the study to resume it (what the program writes"
                " belongs into .gitignore), or choose another --study"
            )


def _program_of(plan: Plan) -> Program:
    record = plan.trials[0].spec.program
    assert record is not None
    return record


def _more(differences: Sequence[str]) -> str:
    return f" (and {len(differences) - 1} more)" if differences[1:] else ""


def _commit(state: MachineState) -> str:
    return f"commit {state.commit_text}" if state.commit_text else "no commit"


def equal_digests(trials: Sequence[PlannedTrial]) -> tuple[str, ...]:
    """Returns the code digests of two revisions if they are the same, else nothing."""
    sides: dict[bool, set[tuple[str, str]]] = {False: set(), True: set()}
    for spec in (trial.spec for trial in trials):
        sides[bool(spec.revision)].add((spec.backend, spec.code_digest))
    digests = sorted({digest for _, digest in sides[False]})
    return tuple(digests) if sides[False] == sides[True] else ()


class CodeWatch:
    """The code of a study, to be asked for before and after each of its trials."""

    # A sweep takes minutes to hours, and starts new processes all the time. What they
    # run is on disk then: an edit in between would mix two programs in one figure.

    def __init__(
        self,
        plan: Plan,
        *,
        folders: Mapping[str, Path],
        left_out: Sequence[Path],
        root: Path = SOURCE_ROOT,
    ) -> None:
        """Takes the code for unchanged that the plan was made with."""
        self._plan, self._left_out, self._root = plan, left_out, root
        self._folder = None if folders else Path.cwd()
        self._code = None if plan.program_code else read_once(root)
        self._found = ""

    def changed(self) -> str:
        """Returns what differs from the plan, or ""."""
        if self._found:  # once it has differed, trials may have run meanwhile
            return self._found
        if self._code is None:
            self._found = self._program_change()
        elif differences := identity.differences(self._code, read(self._root)):
            self._found = f"{differences[0]}{_more(differences)}"
        else:
            self._found = changed_plugin(self._plan)
        return self._found

    def _program_change(self) -> str:
        if self._folder is None:
            return ""
        command = _program_of(self._plan).command
        source = identity.find_repository(self._folder, self._left_out)
        now = identity.program_identity(command, self._folder, source, self._left_out)
        planned = self._plan.program_code[""]
        if "python" in planned and "python" not in now:
            raise PlanError(
                f"the interpreter of --command {command!r} does not say its version any"
                " more, so the code that is measured is unknown; start it by hand, and"
                " repeat the command when it answers"
            )
        # What the program writes beside itself is no change of it, if it is new.
        made = () if source is None else map(identity.key_of_change, source.untracked)
        new = {name for name in now if name.startswith("file ")}.union(made)
        for name in new.difference(planned):
            now.pop(name, None)
        return next(iter(identity.differences(planned, now)), "")
