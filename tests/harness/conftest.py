"""Fixtures of the harness tests: specs, plans and a worker without TensorFlow."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import command_lines
import driver
import fork_server
import pytest
from command_lines import commit, git, overridden
from fake_machine import QUIET, FakeGpu, FakeNvml, FakeRoot

import reports
from harness import ExitCode, main
from harness.machine import gpu_watch
from results import SCHEMA_VERSION, Store, TrialSpec

ROOT = Path(__file__).resolve().parents[2]

SMALL = (
    "--workload=resnet50",
    "--preset=smoke",
    "--replicas=1,2",
    "--mode=weak",
    "--repeats=2",
    "--order=sequential",
)


def _spec(**fields: Any) -> TrialSpec:
    defaults: dict[str, Any] = {
        "workload": "resnet50",
        "workload_version": "1",
        "code_digest": "00",
        "preset": "smoke",
        "data": "digits",
        "backend": "in_graph",
        "num_replicas": 2,
        "per_replica_batch_size": 4,
        "global_batch_size": 8,
        "cores_per_replica": 1,
        "num_warmup_steps": 2,
        "num_measured_steps": 4,
        "is_evaluated": True,
        "repetition_index": 0,
        "seed": 7,
    }
    return TrialSpec(**(defaults | fields))


@pytest.fixture(scope="session")
def make_spec() -> Any:
    return _spec


@pytest.fixture(scope="session", autouse=True)
def _without_plugins() -> None:
    """Processes that tests start look for no plugins of Pydantic: there are none."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")


@pytest.fixture(name="forked_trials")
def _forked_trials() -> Iterator[None]:
    with fork_server.installed(driver.FAKE_WORKER):
        yield


@pytest.fixture
def with_pages() -> None:
    """Sweeps of the test write their pages; requested by the mark ``usefixtures``."""


@pytest.fixture
def writes_pages(request: pytest.FixtureRequest) -> bool:
    marks = request.node.iter_markers("usefixtures")
    return any("with_pages" in mark.args for mark in marks)


@pytest.fixture(autouse=True)
def _without_pages(writes_pages: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps print their summaries only: a page takes longer than the trials."""
    if not writes_pages:
        monkeypatch.setattr(reports, "write_report", lambda *_: None)


@pytest.fixture
def show_page(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that makes the page of each study a text."""

    def show(text: str) -> None:
        def write(_store: Store, path: Path) -> None:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

        monkeypatch.setattr(reports, "build_report", lambda *_, **__: text)
        monkeypatch.setattr(reports, "write_report", write)

    return show


@pytest.fixture
def fake_root(tmp_path: Path) -> FakeRoot:
    return FakeRoot(tmp_path / "root")


@pytest.fixture
def install_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Returns a function that gives this machine a driver with some GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder = tmp_path_factory.mktemp("gpu-locks")
    monkeypatch.setattr(gpu_watch, "lock_folder", lambda: folder)
    monkeypatch.setattr(gpu_watch, "WAIT_SEC", 0.0)

    def install(gpus: list[FakeGpu], **fields: Any) -> FakeNvml:
        made = FakeNvml(gpus, **fields)
        monkeypatch.setitem(sys.modules, "pynvml", made)
        return made

    return install


@pytest.fixture
def gpu_overrides(overrides: dict[str, Any]) -> dict[str, Any]:

    def probe(ids: Any) -> SimpleNamespace:
        return SimpleNamespace(num_gpus=len(ids), is_built_with_cuda=True)

    return overrides | {"probe": probe}


@pytest.fixture(scope="session")
def overrides() -> dict[str, Any]:
    return {
        "worker_command": driver.FAKE_WORKER,
        "canary": _canary,
        "load": lambda _before, _after: QUIET,
    }


def _canary(core: int | None) -> float:
    return 0.0 if core is None else 0.2


@pytest.fixture
def start_harness(tmp_path: Path) -> Any:

    def start(*args: str, **variables: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, driver.__file__, *args],
            cwd=tmp_path,
            env={
                **os.environ,
                **driver.variables(),
                "HARNESS_QUIET": "1",
                "PYTHONPATH": str(ROOT),
                **{name: str(value) for name, value in variables.items()},
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@contextlib.contextmanager
def _terminal() -> Iterator[Any]:
    master, slave = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # EIO is how a pseudo terminal ends
            while chunk := os.read(master, 4096):
                shown.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(slave, "w") as stream, contextlib.redirect_stderr(stream):
            yield lambda: b"".join(shown).decode(errors="replace")
    finally:
        reader.join()
        os.close(master)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a context in which stderr is a terminal; it yields what says its text."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return _terminal


@pytest.fixture
def harness(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(*args: Any, overrides: Any = None) -> Any:
        code = main(args, run_overrides=overrides or {"canary": _canary})
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def succeed(harness: Any) -> Any:
    """Returns a function that runs a command that succeeds; it returns its output."""

    def run(*args: Any, **options: Any) -> str:
        code, out, err = harness(*args, **options)
        assert ExitCode.OK == code, out + err
        return str(out)

    return run


@pytest.fixture
def small() -> tuple[str, ...]:
    return SMALL


@pytest.fixture
def written(tmp_path: Path) -> Any:
    return lambda: sorted(
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")
    )


@pytest.fixture
def refuse(harness: Any, written: Any) -> Any:
    """Returns a function that runs a command that is refused; it returns the line."""

    def run(*args: Any, **options: Any) -> str:
        before = written()
        code, out, err = harness(*args, **options)
        assert (ExitCode.USAGE, "", 1) == (code, out, err.count("\n")), err
        assert err.startswith("error: ")
        assert before == written()
        return str(err)

    return run


@contextlib.contextmanager
def _quick_sweeps(folder: Path) -> Iterator[pytest.MonkeyPatch]:
    with (
        fork_server.installed(driver.FAKE_WORKER),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(folder)
        for name in ("write_report", "print_summary"):
            patch.setattr(reports, name, lambda *_: None)
        yield patch


@pytest.fixture(scope="session")
def quick_sweeps() -> Any:
    """Returns a context: sweeps in a folder, without pages, on a quiet machine."""
    return _quick_sweeps


@pytest.fixture(scope="session")
def template(tmp_path_factory: Any, overrides: Any) -> Any:
    root = tmp_path_factory.mktemp("template")
    with _quick_sweeps(root):
        code = main(("sweep", *SMALL, "--study=s"), run_overrides=overrides)
    assert ExitCode.OK == code
    return root


@pytest.fixture
def finished(template: Path, tmp_path: Path) -> None:
    shutil.copytree(template / "runs", tmp_path / "runs")


@pytest.fixture(scope="module")
def eventful_study(tmp_path_factory: Any, synthetic: Any) -> Path:
    """Makes a small study with quality runs and a failure."""
    shape = synthetic.Shape(
        backends=("in_graph",),
        modes=(synthetic.WEAK,),
        replicas=(1, 2),
        repeats=2,
        num_measured_steps=3,
        budget=synthetic.LEARNING,
        num_learning_runs=2,
        has_actors=True,
        statuses={("in_graph", synthetic.WEAK, 2, 1): synthetic.TrialStatus.FAILED},
    )
    root: Path = tmp_path_factory.mktemp("studies") / "eventful"
    synthetic.make_store(root, shape)
    return root


# Judging: a repository whose revisions differ in the time of a step, and its gates.
QUICK_GATE = (*command_lines.GATE, "--set=rounds=3")


@pytest.fixture(scope="session")
def repository(tmp_path_factory: Any) -> Path:
    """Returns a repository with a revision for everything that a gate can meet."""
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "--quiet")
    for name in ("harness", "replicator", "results", "workloads"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "requirements.lock", folder)
    commit(folder, "same")
    counted = '{"graph_nodes": 100, "collective_bytes": 1000}'
    for name, file, content in (
        ("faster", "slowdown.txt", "0.909"),
        ("slower", "slowdown.txt", "1.1"),
        ("sent_less", "counted.json", counted),
        ("learned_more", "learned.txt", "1.25"),
        ("fails", "slowdown.txt", '"not a number"'),
    ):
        (folder / file).write_text(content)
        commit(folder, name)
        git(folder, "checkout", "--quiet", "same")
    records = folder / "results" / "records" / "models.py"
    for name, old, new in (
        ("older", "    revision: Name", "    tree: Name"),
        (
            "of_older_records",
            *(f"SCHEMA_VERSION = {SCHEMA_VERSION}", "SCHEMA_VERSION = 1"),
        ),
    ):
        records.write_text(records.read_text().replace(old, new))
        commit(folder, name)
    git(folder, "checkout", "--quiet", "same")
    return folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(scope="session")
def gate_overrides(repository: Path) -> dict[str, Any]:
    return {
        "source_root": repository,
        "worker_command": driver.GATE_WORKER,
        "canary": lambda _core: 0.2,
        "load": lambda _before, _after: QUIET,
    }


@pytest.fixture
def gate(
    harness: Any,
    temporary: Path,
    gate_overrides: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    writes_pages: bool,
) -> Any:
    del temporary
    if not writes_pages:
        monkeypatch.setattr(reports, "write_report", lambda *_: None)

    def run(*arguments: str, of: tuple[str, ...] = QUICK_GATE, **replaced: Any) -> Any:
        return harness(*overridden(of, *arguments), overrides=gate_overrides | replaced)

    with fork_server.installed(driver.GATE_WORKER, fork_server.GATES):
        yield run


@pytest.fixture(scope="session")
def template_of_gates(tmp_path_factory: Any, gate_overrides: dict[str, Any]) -> Path:
    """Returns a directory with a finished gate of two equal revisions, made once."""
    root: Path = tmp_path_factory.mktemp("gates")
    with (
        fork_server.installed(driver.GATE_WORKER, fork_server.GATES),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(root)
        patch.setattr(reports, "write_report", lambda *_: None)
        arguments = (*QUICK_GATE, "--baseline=same", "--study=stored")
        assert ExitCode.OK == main(arguments, run_overrides=gate_overrides)
    return root


@pytest.fixture
def stored(template_of_gates: Path, tmp_path: Path) -> str:
    shutil.copytree(template_of_gates / "runs", tmp_path / "runs")
    return "stored"
