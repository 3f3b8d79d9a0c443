"""What tests on GPUs share: which of them can run here, and sweeps with real trials.

They run only where TensorFlow sees NVIDIA GPUs, and are skipped elsewhere with the
reason. With ``REQUIRE_GPU=1`` (``make test-gpu``) it is a failure that there is none.
``test_rehearsal.py`` runs anywhere what of them needs no GPU.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import case_cluster
import covering
import fork_server
import pynvml
import pytest

from results import Store, TrialStatus

if TYPE_CHECKING:
    from results import Trial

ROOT = Path(__file__).resolve().parents[2]
SWEEP_TIMEOUT_SEC = 3600
PROGRAM_TIMEOUT_SEC = 600
# Of TensorFlow, in the output of a forked process.
LOG_LINE = re.compile(r"^[EIW]\d{4} .*\n", re.MULTILINE)
REHEARSAL = "test_rehearsal.py"
COMMON = (
    "--workload=resnet50",
    "--mode=weak",
    "--data=synthetic",
    "--budget=none",
)
SWEEPS = {
    "one replica": ("--backends=single,in_graph", "--replicas=1", "--repeats=3"),
    "compiled": ("--backends=in_graph", "--replicas=1", "--repeats=1"),
    "beyond memory": (
        "--backends=in_graph",
        "--replicas=1",
        "--repeats=1",
        "--per-replica-batch-size=8192",
    ),
    "eight": ("--backends=in_graph,tf_mirrored", "--replicas=1,8", "--repeats=3"),
}
"""The options of each sweep, without those of ``COMMON``."""


@functools.cache
def _count_gpus() -> tuple[int, str]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return 0, f"there is no driver of NVIDIA: {error}"
    command = [sys.executable, "-m", "harness.trial.gpu_probe"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=False
    )
    if done.returncode:
        return 0, f"TensorFlow does not say: {done.stderr[-300:]}"
    number = json.loads(done.stdout.splitlines()[-1])["num_gpus"]
    return number, f"TensorFlow sees {number}"


@pytest.fixture(autouse=True)
def _needs_gpus(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("gpu")
    if request.path.name == REHEARSAL:
        assert marker is None, "what needs a GPU is no rehearsal"
        return
    assert marker is not None, "every other test of this folder has the marker gpu"
    needed = marker.kwargs.get("count", 1)
    found, reason = _count_gpus()
    if not found and os.environ.get("REQUIRE_GPU"):
        pytest.fail(f"REQUIRE_GPU is set, but {reason}")
    if found < needed:
        pytest.skip(f"needs {needed} NVIDIA GPUs that TensorFlow can use: {reason}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Swept:
    store: Store  # The study.
    output: str  # What the harness printed, for messages.

    def trials(self, backend: str, num_replicas: int) -> list[Trial]:
        found = [
            trial
            for trial in self.store.trials()
            if trial.spec is not None
            and (trial.spec.backend, trial.spec.num_replicas) == (backend, num_replicas)
        ]
        assert found, self.output
        return found

    def images_per_sec(self, backend: str, num_replicas: int) -> float:
        rates = []
        for trial in self.trials(backend, num_replicas):
            assert trial.status is not None
            assert TrialStatus.OK is trial.status.status, (
                trial.status.failure,
                self.output,
            )
            assert trial.result is not None
            rates.append(trial.result.examples_per_sec)
        return statistics.median(rates)


def run_sweep(folder: Path, *options: str) -> Swept:
    command = [sys.executable, "-m", "harness", "sweep", "--study=s", *options]
    done = subprocess.run(
        [*command, f"--runs-dir={folder / 'runs'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SWEEP_TIMEOUT_SEC,
        check=False,
    )
    output = done.stdout + done.stderr
    assert (folder / "runs/s/plan.json").exists(), output
    return Swept(store=Store.open(folder / "runs" / "s"), output=output)


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: Any) -> Any:
    def run(name: str, *options: str, device: str = "gpu") -> Swept:
        chosen = (*COMMON, f"--device={device}", *SWEEPS[name], *options)
        return run_sweep(tmp_path_factory.mktemp("sweep"), *chosen)

    return run


@pytest.fixture(scope="session")
def options_of_sweeps() -> dict[str, tuple[str, ...]]:
    return {name: (*COMMON, *options) for name, options in SWEEPS.items()}


@pytest.fixture
def run_program() -> Any:
    def run(path: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, path, *arguments],
            cwd=ROOT,
            env={
                "CUDA_CACHE_MAXSIZE": str(2**32),  # what a trial compiles is kept
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    [str(ROOT), os.environ.get("PYTHONPATH", "")]
                ),
                "TF_CPP_MIN_LOG_LEVEL": "2",
            },
            capture_output=True,
            text=True,
            timeout=PROGRAM_TIMEOUT_SEC,
            check=False,
        )
        assert 0 == done.returncode, done.stdout + done.stderr
        sys.stderr.write(done.stderr)  # pytest keeps it for those who ask
        return done.stdout

    return run


@pytest.fixture
def train_as_one() -> Any:
    """Returns a function that compares the losses of replicas with those of one."""

    def compare(run: Any, program: str, kind: str, num_replicas: int) -> None:
        one, many = (
            [
                float(line)
                for line in run(program, "two_on_one", kind, str(count)).split()
            ]
            for count in (1, num_replicas)
        )
        assert 20 == len(one) == len(many)
        assert one[-1] < one[0]
        # Sums over a batch in parts are rounded differently, over 20 steps.
        assert one == pytest.approx(many, rel=1e-4, abs=1e-6)

    return compare


@pytest.fixture
def rehearse(run_program: Any, tmp_path: Path) -> Any:
    def run(path: str, *arguments: str) -> str:
        if covering.is_full():
            return run_program(path, *arguments)
        log = tmp_path / "output"
        log.unlink(missing_ok=True)
        code, text = fork_server.server(**case_cluster.ENV).run(
            [path, *arguments],
            env={**os.environ, **case_cluster.ENV},
            log=log,
            timeout_sec=PROGRAM_TIMEOUT_SEC,
        )
        assert 0 == code, text
        return LOG_LINE.sub("", text)

    return run
