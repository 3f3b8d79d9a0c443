"""What of the first half hour on GPUs runs without one: its programs and its options.

A mistake in them would otherwise be found on the machine whose time is dear.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import covering
import pytest
import short_resnet
import synthetic
from fake_nvml import FakeNvml, make_gpus

from harness.cli import exit_codes
from harness.cli import main as cli
from results.records.models import ScalingMode, TrialStatus
from workloads import options

FOLDER = Path(__file__).parent
FIRST_HALF_HOUR = (FOLDER / "test_first_half_hour.py").read_text(encoding="utf-8")
# Runs another program while networks are short.
SHORT = f"""
import runpy, sys
sys.path.append({str(Path(short_resnet.__file__).parent)!r})
import short_resnet

with short_resnet.short():
    runpy.run_path("{{path}}", run_name="__main__")
"""
# Runs another program whose devices are taken for GPUs.
AS_GPUS = f"""
import runpy, sys
sys.path.append({str(Path(short_resnet.__file__).parent)!r})
import virtual_gpus

virtual_gpus.take_cpus_for_gpus()
runpy.run_path("{{path}}", run_name="__main__")
"""
# As on GPUs: sums over a batch in two parts are rounded differently, over 20 steps.
LOSS_TOLERANCE = {"rel": 1e-4, "abs": 1e-6}


@pytest.mark.processes
def test_two_replicas_on_one_cpu_train_as_one(rehearse: Any) -> None:
    """The program of the test on one GPU, on two virtual CPUs."""
    one, two = (
        [float(line) for line in rehearse("two_on_one.py", "cpu", count).split()]
        for count in ("1", "2")
    )

    assert 20 == len(one) == len(two)
    assert one[-1] < one[0]
    assert one == pytest.approx(two, **LOSS_TOLERANCE)


@pytest.mark.full
@pytest.mark.processes
def test_eight_replicas_on_virtual_devices_train_as_one(
    rehearse: Any, tmp_path: Path
) -> None:
    """With copies and reductions as on eight GPUs; in the full run only."""
    name = "two_on_one.py"
    program = tmp_path / name
    text = AS_GPUS.format(path=FOLDER / name)
    program.write_text(text, encoding="utf-8")
    one, eight = (
        [float(line) for line in rehearse(str(program), "cpu", count).split()]
        for count in ("1", "8")
    )

    assert 20 == len(one) == len(eight)
    assert one == pytest.approx(eight, **LOSS_TOLERANCE)


@pytest.mark.processes
def test_the_program_that_counts_kernels_finds_none_on_a_cpu(
    rehearse: Any, tmp_path: Path
) -> None:
    """It builds, steps, profiles and reads the trace; a CPU starts no kernels.

    With a short network; the full run has the whole ResNet-50.
    """
    name = "count_kernels.py"
    if not covering.is_full():
        program = tmp_path / name
        program.write_text(SHORT.format(path=FOLDER / name), encoding="utf-8")
        name = str(program)

    printed = rehearse(name, "in_graph", "smoke", "4")

    assert {"kernels": 0, "copies": 0} == json.loads(printed.splitlines()[-1])


def test_kernels_and_copies_of_the_first_gpu_are_counted(tmp_path: Path) -> None:
    """Per dispatch, on its streams: not those of GPU 1, nor derived lines."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space: Any = xplane_pb2.XSpace()
    for name in ("/host:CPU", "/device:GPU:0", "/device:GPU:1"):
        plane = space.planes.add(name=name)
        for key, event in ((1, "gemm"), (2, "MemcpyH2D"), (3, "Memset")):
            plane.event_metadata[key].id = key
            plane.event_metadata[key].name = event
        for line_name in ("Stream #7(Compute)", "Stream #9(MemcpyH2D)", "XLA Ops"):
            line = plane.lines.add(name=line_name)
            for key in (1, 1, 1, 2, 3):
                line.events.add(metadata_id=key)
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(space.SerializeToString())
    spec = importlib.util.spec_from_file_location(
        "count_kernels", FOLDER / "count_kernels.py"
    )
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    found = program.count_events(path)

    assert {"kernels": 6, "copies": 4} == {
        name: count * program.NUM_DISPATCHES for name, count in found.items()
    }


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            (
                "W0000 00:00:1700000000.000000 12 gpu.cc:9] no\n"
                "E0000 00:00:1700000000.000000 12 cupti_error_manager.cc:213]"
                " cuptiActivityEnable: error 35: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\n"
            ),
            "cuptiActivityEnable: error 35: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
        ),
        ("W0000 00:00:1700000000.000000 12 gpu.cc:9] no\n", "its log does not say why"),
    ],
)
def test_a_refused_profiler_is_no_failure(
    why_not_counted: Any, log: str, reason: str
) -> None:
    """The test is skipped with what the profiler said, and what allows it."""
    expected = f"the profiler counted no kernels: {reason}; let it use CUPTI (docker"
    assert why_not_counted(log).startswith(expected)
    assert "pytest.skip(why_not_counted(" in FIRST_HALF_HOUR


def test_a_study_is_read_by_case(read_as_swept: Any, tmp_path: Path) -> None:
    """The median of its repetitions; a failure or a case that is not there is seen."""
    backends = ("single", "in_graph")
    shape = synthetic.Shape(
        backends=backends,
        replicas=(1, 8),
        statuses={("in_graph", ScalingMode.WEAK, 8, 1): TrialStatus.FAILED},
    )
    swept = read_as_swept(synthetic.make_store(tmp_path / "s", shape))

    for backend in backends:
        rates = [t.result.examples_per_sec for t in swept.trials(backend, 1)]
        assert 3 == len(rates)
        assert sorted(rates)[1] == swept.images_per_sec(backend, 1)
    with pytest.raises(AssertionError, match="FAILED"):
        swept.images_per_sec("in_graph", 8)
    with pytest.raises(AssertionError):
        swept.trials("single", 8)


@pytest.mark.full
@pytest.mark.processes
def test_the_sweep_with_one_replica_is_read_as_on_a_gpu(sweep: Any) -> None:
    """Real trials on the CPU, through the same functions.

    Only in the full run: others make such sweeps, read studies and plan these options.
    """
    swept = sweep(
        "one replica",
        "--preset=smoke",
        "--repeats=1",
        "--order=sequential",
        "--num-warmup-steps=2",
        "--num-measured-steps=2",
        device="cpu",
    )

    assert swept.images_per_sec("single", 1) > 0
    assert swept.images_per_sec("in_graph", 1) > 0
    (trial,) = swept.trials("in_graph", 1)
    assert all(map(math.isfinite, trial.result.ranks[0].losses))
    assert () == trial.env.gpus == trial.env.gpu_uses


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
    jits = [f"--option=jit={jit}" for jit in options.JITS]
    sweeps += [[*options_of_sweeps["compiled"], jit] for jit in jits]
    makefile = (FOLDER.parents[1] / "Makefile").read_text(encoding="utf-8")
    (flags,) = re.findall(r"^SWEEP_GPU_FLAGS \?= (.+)$", makefile, re.MULTILINE)
    for chosen in [*sweeps, flags.split()]:  # the last one is make sweep-gpu
        code = cli.main(["sweep", "--dry-run", "--device=gpu", *chosen])
        printed = capsys.readouterr()

        assert exit_codes.OK == code, (chosen, printed.err)
        assert re.search(r"\bin_graph\b", printed.out)
    assert [] == list(tmp_path.iterdir())


def test_every_sweep_of_a_test_is_a_planned_one(
    options_of_sweeps: dict[str, tuple[str, ...]],
) -> None:
    """A test that asks for a sweep by another name would end on the GPUs."""
    names = [
        node.args[0].value
        for node in ast.walk(ast.parse(FIRST_HALF_HOUR))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "sweep"
        and isinstance(node.args[0], ast.Constant)
    ]

    assert len(names) >= 4
    assert {*options_of_sweeps} == {*names}


def test_every_kind_of_compilation_has_its_test() -> None:
    """Those that workloads take, at least."""
    (tested,) = re.findall(r'"jit", (\[.*?\])', FIRST_HALF_HOUR)

    assert set(options.JITS) <= set(json.loads(tested))


def test_the_page_describes_every_test_and_its_threshold() -> None:
    """``docs/gpu.md`` says what each should show, and that none has run."""
    page = (FOLDER.parents[1] / "docs/gpu.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| .+ \| .+ \|$", page, re.MULTILINE)
    described = {re.sub(r"\W+", "_", row.lower()).strip("_") for row in rows}
    names = re.findall(r"^def test_(\w+)", FIRST_HALF_HOUR, re.MULTILINE)

    assert len(names) >= 6
    assert [] == [name for name in names if name not in described]
    for threshold in ("1e-4", "2 %", "3 %", "7.3 times", "`tf_mirrored`"):
        assert threshold in page
    assert "This project has not run on GPUs." in page
    readme = (FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")
    assert "This project has not run on GPUs." in readme
