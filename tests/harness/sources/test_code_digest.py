"""A trial's code digest covers what can change its numbers, and nothing else."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import PlanError
from harness.run.trial_runner import RunSettings, run_trial
from harness.sources import code_digest
from harness.sources.code_digest import DISTRIBUTIONS, Sources
from results.records import identity
from results.records.models import PlannedTrial, ScalingMode, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from results.store.study_store import Store

ROOT = Path(__file__).resolve().parents[3]
# Finding the versions takes longer than all else, and each digest would do it anew.
VERSIONS = {name: importlib.metadata.version(name) for name in DISTRIBUTIONS}
SOURCES = Sources(root=ROOT, versions=VERSIONS)
WORKLOADS = ("resnet50", "sngan", "d4pg")
BACKENDS = ("in_graph", "multi_worker", "tf_mirrored", "async")
A_LINE = "\nCHANGED = True\n"

# Place, start, time and conclude a trial, in the harness or in the trial.
ROOMS_THAT_COUNT = ("machine", "placement", "run", "trial")
# Read the command line and show; plan (what that decides is in the spec) and store.
# Of launchers, only what starts the trials of this machine is in their digest.
ROOMS_THAT_DO_NOT = (
    *("cli", "client", "command", "conformance", "doctor"),
    *("judging", "launch", "options", "planning", "sources"),
)
MODULES_THAT_COUNT = {
    "harness",
    "harness.catalog",
    "harness.client",
    "harness.client.scaling_client",
    "harness.errors",
    "harness.launch",
    "harness.launch.contract",
    "harness.launch.local",
    "harness.lookup",
}
# The order in which trials run, what is not timed, and the start of the command line.
MODULES_THAT_DO_NOT = {
    "harness.__main__",
    "harness.run.early_counts",
    "harness.run.listener",
    "harness.run.match_runs",
    "harness.run.peer_exports",
    "harness.run.phase_watch",
    "harness.run.sweep",
    "harness.run.time_left",
}

_PRINT_MODULES = """
import json, sys
from harness.trial import worker
code = worker.main(sys.argv[1:])
print(json.dumps([name for name, module in sys.modules.items() if module is not None]))
sys.exit(code)
"""


def modules_in(*rooms: str) -> set[str]:
    """The modules in some folders of the harness."""
    return {
        name
        for name in SOURCES.paths
        if name.startswith(tuple(f"harness.{room}" for room in rooms))
    }


def those_that_count() -> set[str]:
    """The modules of the harness whose code can change the numbers of a trial."""
    return (modules_in(*ROOMS_THAT_COUNT) | MODULES_THAT_COUNT) - MODULES_THAT_DO_NOT


def those_that_do_not() -> set[str]:
    """The modules of the harness that decide or show, and are not in a trial."""
    return (modules_in(*ROOMS_THAT_DO_NOT) - MODULES_THAT_COUNT) | MODULES_THAT_DO_NOT


@functools.cache
def read(module: str) -> str:
    """The text of a module."""
    return SOURCES.paths[module].read_text(encoding="utf-8")


@functools.cache
def before(workload: str, backend: str) -> str:
    """The digest of a trial before any change."""
    return code_digest.of_sources(workload, backend, SOURCES)


def changed_by(texts: dict[str, str]) -> set[tuple[str, str]]:
    """The workloads and backends whose digest is another with these texts."""
    unchanged = {module: read(module) for module in SOURCES.paths}
    other = Sources(root=ROOT, texts=unchanged | texts, versions=VERSIONS)
    return {
        (workload, backend)
        for workload in WORKLOADS
        for backend in BACKENDS
        if before(workload, backend) != code_digest.of_sources(workload, backend, other)
    }


ALL = {(workload, backend) for workload in WORKLOADS for backend in BACKENDS}


def of_workloads(*names: str) -> set[tuple[str, str]]:
    """Every backend's trials of some workloads."""
    return {(workload, backend) for workload, backend in ALL if workload in names}


def of_backends(*names: str) -> set[tuple[str, str]]:
    """Every workload's trials on some backends."""
    return {(workload, backend) for workload, backend in ALL if backend in names}


@functools.cache
def modules_of(workload: str, backend: str) -> set[str]:
    """The modules whose fingerprints are in the digest of a trial."""
    return set(code_digest.measured_code(workload, backend, SOURCES))


def test_what_runs_a_trial_is_in_every_digest() -> None:
    """Placement, threads, processes, timing and the result are the trial's own."""
    for case in ALL:
        assert those_that_count() <= modules_of(*case), case


def test_what_plans_or_shows_is_in_no_digest() -> None:
    """A study is not lost because a table has another column."""
    for case in ALL:
        assert not those_that_do_not() & modules_of(*case), case


def test_a_line_changes_the_fingerprint_of_a_module() -> None:
    """So that every digest which has the module changes with it."""
    texts = {module: read(module) + A_LINE for module in those_that_count()}
    other = Sources(root=ROOT, texts=texts)

    for module in texts:
        assert SOURCES.code(module).fingerprint != other.code(module).fingerprint


def one_of_each_folder(modules: set[str]) -> list[Any]:
    """Cases of which the full run has all, other runs the first of each folder."""
    cases, folders = [], set[str]()
    for module in sorted(modules):
        folder = module.rpartition(".")[0]
        marks = [pytest.mark.full] if folder in folders else []
        folders.add(folder)
        cases.append(pytest.param(module, marks=marks))
    return cases


@pytest.mark.parametrize("module", one_of_each_folder(those_that_count()))
def test_a_line_of_what_runs_a_trial_changes_every_digest(module: str) -> None:
    """The full run tries every module, other runs one of each folder."""
    assert changed_by({module: read(module) + A_LINE}) == ALL


def test_lines_of_what_plans_or_shows_change_no_digest() -> None:
    """One in each of these modules."""
    texts = {module: read(module) + A_LINE for module in those_that_do_not()}

    assert changed_by(texts) == set()


def test_it_is_said_of_each_module_of_the_harness_whether_it_counts() -> None:
    """A new module is put on one of the two sides."""
    found = {name for name in SOURCES.paths if name.split(".")[0] == "harness"}

    assert found == those_that_count() | those_that_do_not()
    assert not those_that_count() & those_that_do_not()


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("workloads.d4pg.evaluation.film", of_workloads("d4pg")),
        ("workloads.d4pg.acting.process", of_workloads("d4pg")),
        ("workloads.resnet50.model", of_workloads("resnet50")),
        ("workloads.sngan.networks", of_workloads("sngan")),
        ("workloads.metrics.kid", of_workloads("sngan")),
        ("workloads.common.lars", of_workloads("resnet50")),
        ("workloads.data.digits.write", of_workloads("resnet50", "sngan")),
        ("workloads.spec", ALL),
        ("replicator.backends.asynchronous", of_backends("async")),
        ("replicator.backends.strategy", of_backends("tf_mirrored")),
        ("replicator.async_training.commit", of_backends("async")),
        ("replicator.cluster.environment.slurm", set()),
        ("replicator.cluster.liveness.watch", of_backends("async")),
        (
            "replicator.backends.in_graph",
            of_backends("in_graph", "multi_worker"),
        ),
        (
            "replicator.engine.link.linker",
            of_backends("in_graph", "multi_worker", "async"),
        ),
        ("replicator.optimizer.wrapper", ALL),
        ("replicator.server", ALL),
        ("replicator", ALL),
    ],
)
def test_a_line_changes_the_trials_that_reach_it(
    module: str, expected: set[tuple[str, str]]
) -> None:
    """Those of the workload and of the backend that import it; the engine is all's."""
    assert changed_by({module: read(module) + A_LINE}) == expected


def test_a_public_name_leads_to_its_module(tmp_path: Path) -> None:
    """One that a package loads on first use, under whatever name it was imported."""
    package = tmp_path / "replicator"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__init__.pyi").write_text(
        "from .one import first as first\nfrom .two import second as second\n"
    )
    for name in ("one", "two"):
        (package / f"{name}.py").touch()
    sources = Sources(root=tmp_path)
    reached = {
        text: code_digest._modules_of(
            code_digest.source_code.read(text, "workloads").references, sources
        )
        for text in (
            "import replicator\nreplicator.first()",
            "import replicator as tfr\ntfr.second()",
            "from replicator import first",
            "import replicator\nuse(replicator)",
            "import replicator\ndef f(replicator):\n  use(replicator)",
        )
    }

    assert [
        {"replicator", "replicator.one"},
        {"replicator", "replicator.two"},
        {"replicator", "replicator.one"},
        {"replicator", "replicator.one", "replicator.two"},
        {"replicator"},
    ] == list(reached.values())


@pytest.mark.parametrize(
    ("module", "old", "new", "expected"),
    [
        ("workloads.catalog", "the recipe of Goyal", "a recipe", ("resnet50",)),
        ("workloads.catalog", "D4PG on the DeepMind", "on DeepMind", ("d4pg",)),
        ("replicator.catalog", "workers share one copy", "they share it", ("async",)),
    ],
)
def test_an_entry_of_a_catalogue_counts_for_its_own_trials(
    module: str, old: str, new: str, expected: tuple[str, ...]
) -> None:
    """Other workloads and backends may be added and changed."""
    text = read(module)
    assert old in text

    assert changed_by({module: text.replace(old, new)}) == (
        of_workloads(*expected) | of_backends(*expected)
    )


@pytest.mark.parametrize("package", ["harness", "replicator", "workloads"])
def test_comments_docstrings_and_formatting_change_nothing(package: str) -> None:
    """All files of a package at once, written by another formatter."""
    texts = {}
    for module in SOURCES.paths:
        if module.split(".")[0] == package:
            tree = ast.parse(read(module))
            for node in ast.walk(tree):
                body = getattr(node, "body", None)
                if isinstance(body, list) and ast.get_docstring(_with_docs(node)):
                    body[0] = ast.parse("'another docstring'").body[0]
            texts[module] = f"# A comment.\n{ast.unparse(tree)}\n"
            assert texts[module] != read(module)

    assert changed_by(texts) == set()


def _with_docs(node: ast.AST) -> Any:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return node if isinstance(node, kinds) else ast.Module(body=[], type_ignores=[])


def test_files_are_read_from_the_tree(tmp_path: Path) -> None:
    """Another number of threads in a copy is another digest; a moved file too."""
    for package in ("harness", "replicator", "workloads"):
        shutil.copytree(ROOT / package, tmp_path / package)
    copied = code_digest.of_sources("resnet50", "in_graph", Sources(root=tmp_path))
    path = tmp_path / "harness" / "run" / "trial_tree.py"
    path.write_text(
        path.read_text().replace(
            "num_threads = str(placement.num_intra_op_threads)", "num_threads = '1'"
        )
    )
    after = code_digest.of_sources("resnet50", "in_graph", Sources(root=tmp_path))
    path = tmp_path / "replicator" / "optimizer" / "fused.py"
    path.rename(path.with_name("joined.py"))
    moved = code_digest.of_sources("resnet50", "in_graph", Sources(root=tmp_path))

    assert copied == code_digest.of_trial("resnet50", "in_graph")
    assert len({copied, after, moved}) == 3


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda path: path.write_text("def f(:\n"), "invalid syntax"),
        (lambda path: path.write_bytes(b"x = '\xff'\n"), "can't decode byte"),
        (lambda path: path.unlink() or path.mkdir(), "Is a directory"),
    ],
)
def test_code_that_cannot_be_read_is_named(
    tmp_path: Path, change: Callable[[Path], Any], what: str
) -> None:
    """In one line, with what to do."""
    for package in ("harness", "replicator", "workloads"):
        shutil.copytree(ROOT / package, tmp_path / package)
    change(tmp_path / "harness" / "run" / "trial_tree.py")

    with pytest.raises(
        PlanError,
        match=rf"cannot read '.*trial_tree\.py', which is part .*{what}.*; fix",
    ):
        code_digest.of_sources("resnet50", "in_graph", Sources(root=tmp_path))


@pytest.mark.parametrize(
    ("workload", "backend", "what"),
    [
        ("resnet51", "in_graph", "no WorkloadInfo .* name 'resnet51'"),
        ("resnet50", "in_grph", "no BackendInfo .* name 'in_grph'"),
    ],
)
def test_an_unknown_name_has_no_digest(workload: str, backend: str, what: str) -> None:
    """A digest of half of the code would be worse than none."""
    with pytest.raises(PlanError, match=rf"{what}.*; 'python -m harness list' shows"):
        code_digest.of_trial(workload, backend)


@pytest.mark.processes
def test_every_module_of_ours_that_a_trial_loads_counts(
    store: Store, settings: Any, make_spec: Any
) -> None:
    """What was found by reading is all that a real trial imports."""
    spec = make_spec(
        workload="d4pg",
        data="synthetic",
        num_replicas=1,
        per_replica_batch_size=8,
        global_batch_size=8,
        num_warmup_steps=1,
        num_measured_steps=1,
        is_evaluated=False,
    )
    trial_id, case_id = identity.ids(spec)
    trial = PlannedTrial(
        trial_id=trial_id, case_id=case_id, modes=(ScalingMode.WEAK,), spec=spec
    )
    real = RunSettings(
        timeout_sec=300.0,
        topology=settings.topology,
        canary=settings.canary,
        worker_command=(sys.executable, "-c", _PRINT_MODULES),
    )
    status = run_trial(store, trial, real)
    assert TrialStatus.OK is status.status, status.failure
    output = (store.trial_dir(trial_id) / "stdout.log").read_text()
    loaded = set(json.loads(output.splitlines()[-1]))

    counted = set(code_digest.measured_code("d4pg", "in_graph", SOURCES))
    assert {"harness.trial.worker", "replicator.backends.in_graph"} <= loaded
    ranks = {name for name in SOURCES.paths if name.startswith(code_digest.RANKS)}
    assert (loaded & set(SOURCES.paths)) - ranks <= counted


def test_a_workload_without_tensorflow_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where only what programs of the user's need is installed."""

    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    message = r"resnet50 needs .*, which is not installed; install '.*\[tensorflow\]'"
    with pytest.raises(PlanError, match=message):
        code_digest.of_sources("resnet50", "in_graph", Sources(root=ROOT))
