"""What all tests share: their processes, and which cases run."""

from __future__ import annotations

import gc
import importlib
import os
import pathlib
import runpy
import shutil
import sys
from typing import Any

import psutil
import pytest

FOLDER = pathlib.Path(__file__).parent
QUICK_START = FOLDER / "quick_start"
# Folders of programs that run on the devices of one process.
OF_REPLICAS = ("conformance", "failed_steps", "fuzz", "programs")
NUM_VIRTUAL_DEVICES = 4

_SERVED = "tests/replicator/backends/multi_worker_in_graph"
# Files whose tests share what is slow to make: one process runs all of a group.
GROUPS = {
    "tests/browser/test_geometry.py": "a browser",
    "tests/browser/test_interaction.py": "a browser",
    "tests/cluster_engines/test_slurm_faults.py": "a cluster of Slurm",
    "tests/cluster_engines/test_slurm.py": "a cluster of Slurm",
    "tests/browser/test_published.py": "a browser",
    "tests/workloads/metrics/test_extractors.py": "classifier of digits",
    "tests/workloads/sngan/test_program.py": "classifier of digits",
}
# What takes longest starts first, so that no process is left with it at the end. Files
# that are not here follow in the order of their names.
LONG_FIRST = (
    "tests/conformance/",
    "tests/cluster_engines/",
    "tests/replicator/async_training/",
    "tests/replicator/backends/multi_worker/",
    f"{_SERVED}/",
    "tests/e2e/",
    "tests/workloads/resnet50/test_program.py",
    "tests/workloads/sngan/test_program.py",
    "tests/workloads/metrics/test_extractors.py",
    "tests/harness/run/test_kill_and_leave_nothing.py",
    "tests/docs/",
    "tests/replicator/backends/test_leaks.py",
    "tests/workloads/",
)
# What waits for other processes most of the time is spread over what computes, so that
# neither all processes wait nor all compute.
WAITING = (
    "tests/cluster_engines/",
    "tests/harness/",
    "tests/replicator/async_training/",
    "tests/replicator/backends/multi_worker/",
    f"{_SERVED}/",
)


def _start_quickly() -> None:
    """Makes imports quick, here and in processes that tests start."""
    # Where an environment asks not to keep what is compiled, each of 500 processes
    # would compile our modules again, and each run rewrite the assertions of all tests.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # What tests start by ``python3`` is this one: a shim in its place takes 0.1 s.
    own = str(pathlib.Path(sys.executable).parent)
    if not os.environ["PATH"].startswith(f"{own}{os.pathsep}"):
        os.environ["PATH"] = os.pathsep.join([own, os.environ["PATH"]])
    if len(os.sched_getaffinity(0)) == 1:  # operations under test wait for one another
        os.environ.setdefault("TF_NUM_INTEROP_THREADS", "2")
    if os.environ.get("IMPORT_AS_USERS"):  # tests/quick_start/test_import_of_users.py
        return
    paths = [
        path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path
    ]
    if str(QUICK_START) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(QUICK_START), *paths])
        runpy.run_path(str(QUICK_START / "sitecustomize.py"))


# Before the files of folders below, which import TensorFlow.
_start_quickly()
# What tests of several folders share is imported from there, by one name everywhere.
sys.path[:0] = [
    path
    for path in map(
        str,
        (
            FOLDER / "support",
            FOLDER / "validation" / "statistics",
            *(FOLDER / name for name in OF_REPLICAS),
        ),
    )
    if path not in sys.path
]


import covering  # noqa: E402 - the folder is on the path from here on

_NUM_LEFT: dict[str, int] = {}
_STARTED: dict[str, str] = {}


# More objects than a file of quick tests makes.
_MANY_OBJECTS = 100_000
# Processes that run tests, on a machine of many cores.
MOST_WORKERS = 9


def pytest_pycollect_makemodule(module_path: pathlib.Path) -> None:
    """Makes virtual devices before TensorFlow runs its first op: at collection."""
    if module_path.relative_to(FOLDER).parts[0] in OF_REPLICAS:
        from replicator.core import devices

        devices.split_cpu(NUM_VIRTUAL_DEVICES)


def pytest_collection_finish() -> None:
    """Collects garbage less often: 6 % of the time of tests that trace."""
    gc.set_threshold(20_000, 20, 100)


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leaves the rests of products to the full run, and puts tests in order."""
    _NUM_LEFT["here"] = covering.leave_out(config, items)

    files = dict.fromkeys(_file(item.nodeid) for item in items)

    def rank(file: str) -> int:
        starts = [i for i, start in enumerate(LONG_FIRST) if file.startswith(start)]
        return starts[0] if starts else len(LONG_FIRST)

    before = {}  # By file, the share of the files of its kind that come before it.
    for is_waiting in (False, True):
        kind = sorted(
            (f for f in files if f.startswith(WAITING) == is_waiting), key=rank
        )
        before |= {file: index / len(kind) for index, file in enumerate(kind)}
    items.sort(key=lambda item: before[_file(item.nodeid)])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    """Sets aside what imports and other files left: no collector visits it again."""
    if _STARTED.get("file") == (file := _file(item.nodeid)):
        return
    _STARTED["file"] = file
    if len(gc.get_objects()) > _MANY_OBJECTS:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than cores: a test of a cluster waits for a fifth of its time.

    Each imports TensorFlow, collects all tests and has servers of forks: 1.5 GB.
    """
    fitting = psutil.virtual_memory().available // 2_000_000_000
    return max(min(len(os.sched_getaffinity(0)) + 1, fitting, MOST_WORKERS), 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """Deals out files, as ``--dist loadfile`` does, in this order and by group."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByGroup(LoadFileScheduling):  # type: ignore[misc]
        """Keeps the files of a group in one process."""

        def _split_scope(self, nodeid: str) -> str:
            return GROUPS.get(_file(nodeid), _file(nodeid))

    config.option.loadscopereorder = False  # by the number of tests, not by their time
    return ByGroup(config, log)


def pytest_sessionfinish(session: Any) -> None:
    """Tells the process that prints how many tests were left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["num_left"] = _NUM_LEFT.get("here", 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every process leaves out the same tests."""
    _NUM_LEFT["here"] = getattr(node, "workeroutput", {}).get("num_left", 0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints what was left out."""
    if _NUM_LEFT.get("here"):
        terminalreporter.write_line(
            f"{_NUM_LEFT['here']} cases beyond the covering ones were left out: make "
            f"test-full, or {covering.VARIABLE}=1, runs them"
        )


@pytest.fixture(scope="session", autouse=True)
def _ports_of_its_own() -> None:
    """Gives each of several test processes its share of the ports of clusters."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if not worker:
        return
    from replicator.cluster import local_cluster

    low, high = local_cluster._PORTS
    share = (high - low) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    low += int(worker) * share
    local_cluster._PORTS = (low, low + share - 1)


@pytest.fixture(scope="session")
def synthetic() -> Any:
    """The module that makes stores of studies that nobody measured."""
    return importlib.import_module("synthetic")


@pytest.fixture(scope="session")
def make(tmp_path_factory, synthetic):
    """Returns a function that makes a study; of equal fields, once."""
    made = {}

    def make_study(shape=None, **fields):
        shape = shape or synthetic.Shape(**fields)
        if repr(shape) not in made:
            root = tmp_path_factory.mktemp("study") / "s"
            made[repr(shape)] = synthetic.make_store(root, shape)
        return made[repr(shape)]

    return make_study


CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser():
    """A running browser; tests are skipped where there is none."""
    pytest.importorskip(
        "playwright", reason="Playwright is not installed: make setup installs it"
    )
    path = os.environ.get("CHROMIUM") or next(
        filter(None, map(shutil.which, CHROMIUMS)), ""
    )
    if not path:
        pytest.skip(
            "no Chromium: apt-get install chromium, or set CHROMIUM to its path"
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # As root, as in containers, Chromium runs without its sandbox only.
        found = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()
