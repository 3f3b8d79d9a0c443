"""Plans by the command line, on machines of any size; nothing is measured."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from fake_nvml import FakeNvml, make_gpus

from harness.cli import exit_codes
from harness.cli import main as cli
from harness.machine import machine_state
from harness.machine.machine_state import CpuTopology, LogicalCpu

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Returns a folder in which plans are made; nobody looks for MuJoCo."""
    made = tmp_path_factory.mktemp("plans")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.setattr("workloads.d4pg.requirements.check", lambda *_, **__: None)
        # Counting the variables of a model imports TensorFlow.
        patch.setattr("workloads.catalog.memory_table", lambda *_, **__: [""])
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.delenv("TFDS_DATA_DIR", raising=False)
        yield made
        assert [] == list(made.iterdir())


def _run(
    options: str, num_cores: int, num_gpus: int, preset: str = "smoke"
) -> tuple[int, str, str]:
    cpus = tuple(LogicalCpu(cpu=cpu) for cpu in range(num_cores))
    words = ["sweep", "--dry-run", *options.split()]
    if "--workload" not in options:
        words += ["--workload=resnet50"]
    if preset and "--preset" not in options:
        words += [f"--preset={preset}"]
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        topology = CpuTopology(cpus=cpus)
        patch.setattr(machine_state, "read_topology", lambda: topology)
        patch.setitem(sys.modules, "pynvml", FakeNvml(make_gpus(num_gpus)))
        code = cli.main(words)
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def plan(folder: Any) -> Any:
    """Returns a function that plans a sweep: the record of it, as JSON."""
    del folder

    def run(options: str, num_cores: int = 8, num_gpus: int = 2, **preset: str) -> Any:
        code, out, err = _run(f"{options} --json", num_cores, num_gpus, **preset)
        assert (exit_codes.OK, "") == (code, err)
        return json.loads(out)

    return run


@pytest.fixture(scope="module")
def notes(folder: Any) -> Any:
    """Returns a function that plans a sweep: what is said of it, in lines."""
    del folder

    def run(options: str, num_cores: int = 8, num_gpus: int = 2) -> list[str]:
        code, _, err = _run(options, num_cores, num_gpus)
        assert exit_codes.OK == code, err
        return err.splitlines()

    return run


@pytest.fixture(scope="module")
def refused(folder: Any) -> Any:
    """Returns a function that plans what cannot be planned: the line about it."""
    del folder

    def run(options: str, num_cores: int = 8, num_gpus: int = 2) -> str:
        code, out, err = _run(options, num_cores, num_gpus)
        assert (exit_codes.USAGE, "", 1) == (code, out, err.count("\n")), err
        return err.removeprefix("error: ").rstrip()

    return run
