"""What of the first half hour on GPUs runs without one: its programs and its options.

A mistake in them would otherwise be found on the machine whose time is dear.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import covering
import programs
import pytest
import small_programs
from fake_machine import FakeNvml, make_gpus

from harness import ExitCode, main

# Runs another program while networks are short.
SHORT = f"""
import runpy, sys
sys.path.append({str(Path(small_programs.__file__).parent)!r})
import small_programs

with small_programs.short():
    runpy.run_path("{{path}}", run_name="__main__")
"""
# Runs another program whose devices are taken for GPUs.
AS_GPUS = f"""
import runpy, sys
sys.path.append({str(Path(small_programs.__file__).parent)!r})
import tiny_models

tiny_models.take_cpus_for_gpus()
runpy.run_path("{{path}}", run_name="__main__")
"""


@pytest.mark.processes
def test_two_replicas_on_one_cpu_train_as_one(rehearse: Any, train_as_one: Any) -> None:
    train_as_one(rehearse, programs.__file__, "cpu", 2)


@pytest.mark.full
@pytest.mark.processes
def test_eight_replicas_on_virtual_devices_train_as_one(
    rehearse: Any, train_as_one: Any, tmp_path: Path
) -> None:
    """With copies and reductions as on eight GPUs; in the full run only."""
    program = tmp_path / "program.py"
    text = AS_GPUS.format(path=programs.__file__)
    program.write_text(text, encoding="utf-8")
    train_as_one(rehearse, str(program), "cpu", 8)


@pytest.mark.processes
def test_the_program_that_counts_kernels_finds_none_on_a_cpu(
    rehearse: Any, tmp_path: Path
) -> None:
    """It builds, steps, profiles and reads the trace; a CPU starts no kernels."""
    path = programs.__file__
    if not covering.is_full():
        program = tmp_path / "program.py"
        program.write_text(SHORT.format(path=path), encoding="utf-8")
        path = str(program)

    printed = rehearse(path, "count_kernels", "in_graph", "smoke", "4")

    assert {"kernels": 0, "copies": 0} == json.loads(printed.splitlines()[-1])


def test_every_sweep_can_be_planned_on_eight_gpus(
    options_of_sweeps: dict[str, tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: Any,
) -> None:
    """With the options that the tests pass, each kind of compilation, and make's."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(make_gpus(8)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    sweeps = [[*chosen] for chosen in options_of_sweeps.values()]
    jits = [f"--option=jit={jit}" for jit in ("off", "compute")]
    sweeps += [[*options_of_sweeps["compiled"], jit] for jit in jits]
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    (flags,) = re.findall(r"^SWEEP_GPU_FLAGS \?= (.+)$", makefile, re.MULTILINE)
    for chosen in [*sweeps, flags.split()]:  # the last one is make sweep-gpu
        code = main(["sweep", "--dry-run", "--device=gpu", *chosen])
        printed = capsys.readouterr()

        assert ExitCode.OK == code, (chosen, printed.err)
        assert re.search(r"\bin_graph\b", printed.out)
    assert [] == list(tmp_path.iterdir())
