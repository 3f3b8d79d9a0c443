"""Sweeps on GPUs: what cannot be carried out or continued is one line each."""

import contextlib
import re
import shutil
from types import SimpleNamespace

import pytest
from command_lines import overridden, smoke_sweep
from fake_machine import FakeGpu, FakeMig, make_gpus, without

from harness import ExitCode
from harness.machine import gpu_watch, gpus

pytestmark = pytest.mark.usefixtures("forked_trials")

SWEEP = smoke_sweep("--device=gpu --backends=in_graph --mode=weak --repeats=1")
MIG = [FakeGpu(mig=[FakeMig(uuid="MIG-1"), FakeMig(uuid="MIG-2")])]
MIXED = [*make_gpus(2), FakeGpu(uuid="GPU-a", name="NVIDIA A100-SXM4-80GB")]
BUSY = [*make_gpus(2), FakeGpu(uuid="GPU-b", users=[1, 2])]
HIDDEN = [FakeGpu(utilization=40, unsupported=without("ComputeRunningProcesses"))]


def seen(num_gpus, *, has_cuda=True, **versions):
    return {
        "probe": lambda _ids: SimpleNamespace(
            num_gpus=num_gpus, is_built_with_cuda=has_cuda, **versions
        )
    }


VERSIONS = {"cuda_version": "12.5.1", "cudnn_version": "9"}
EIGHT = make_gpus(8)
LOST = FakeGpu(uuid="GPU-c", is_lost=True)
UNUSABLE = [
    ([], "1", None, {}, r"shows 0 GPUs \(NVIDIA driver missing.*; use --device cpu"),
    (make_gpus(2), "1,4", None, {}, r"needs 4 GPUs, .* 2; use at most --replicas 2"),
    (EIGHT, "1,2", "0", {}, r"--replicas needs 2 GPUs, but this machine shows 1"),
    (make_gpus(2), "1", "GPU-00,GPU-x", {}, r"'GPU-x' is no GPU .*; allowed are 0, 1 "),
    (MIG, "1,2", None, {}, r"in MIG mode, .*; use --replicas 1, or .* -mig 0"),
    (MIXED, "1,3", None, {}, r"GPU 0\+1 are NV.*, GPU 2 is .*DEVICES=0,1(?!,)"),
    ([*make_gpus(1), LOST], "1", None, {}, r"GPU is lost.*--gpu-reset"),
    # Where somebody else has the GPUs, the machine is unfit.
    (BUSY, "1,3", None, {}, r"GPU 2 .* used by 2 other processes, .* itself; .*=0,1$"),
    (HIDDEN, "1", None, {}, r"GPU 0 .* is 40 % busy, .* itself; .*'nvidia-smi' .*\)$"),
    # It would run on the CPU, and say nothing.
    (EIGHT, "1,2", None, seen(0, has_cuda=False), r"has no CUDA; install .* setup-gpu"),
    (EIGHT, "1,2", None, seen(0, **VERSIONS), r"CUDA 12.5.1 and cuDNN 9, .*setup-gpu"),
    (EIGHT, "1,2", None, seen(1), r"was given 2 \(CUDA_V.*=0,1\): it skips the others"),
]


@pytest.mark.parametrize("row", UNUSABLE)
def test_gpus_that_a_sweep_cannot_use_are_one_line(
    harness, gpu_overrides, install_gpus, monkeypatch, written, row
):
    machine, replicas, limit, more, message = row
    install_gpus(machine)
    if limit is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", limit)
    words = (*SWEEP, f"--replicas={replicas}")
    found, out, err = harness(*words, overrides=gpu_overrides | more)

    is_unfit = "itself" in message or bool(more)
    assert (ExitCode.UNFIT if is_unfit else ExitCode.USAGE, "") == (found, out)
    assert re.fullmatch("error: [^\n]*\n", err)
    assert re.search(message, err.rstrip()), err
    assert [] == written()


def test_a_plan_does_not_ask_tensorflow(harness, install_gpus, written):
    install_gpus(BUSY)
    code, out, _ = harness("sweep", "--dry-run", *SWEEP[1:], "--replicas=1,2")

    assert ExitCode.OK == code
    assert "in_graph" in out
    assert [] == written()


ONE_BUSY = [FakeGpu(uuid="GPU-1"), FakeGpu(uuid="GPU-2", users=[1])]


@pytest.fixture(scope="module")
def failed_study(tmp_path_factory):
    return tmp_path_factory.mktemp("failed") / "runs"


@pytest.fixture
def resume(harness, gpu_overrides, install_gpus, failed_study, tmp_path, monkeypatch):
    install_gpus(make_gpus(2))
    if failed_study.exists():
        shutil.copytree(failed_study, tmp_path / "runs")
    else:
        monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:fail")
        words = (*SWEEP, "--replicas=1,2", "--budget=none", "--no-match", "--study=s")
        code, _, err = harness(*words, overrides=gpu_overrides)
        assert ExitCode.NOTHING_MEASURED == code, err
        monkeypatch.delenv("FAKE_BEHAVIOR")
        shutil.copytree(tmp_path / "runs", failed_study)

    def run(machine, **overrides):
        install_gpus(machine)
        words = ("sweep", "--study", "s", "--retry=failed")
        return harness(*words, overrides=gpu_overrides | overrides)

    return run


@pytest.mark.parametrize(
    ("machine", "limit", "more", "code", "message"),
    [
        (make_gpus(8), None, {}, ExitCode.OK, ""),
        ([], None, {}, ExitCode.USAGE, r"needs 2 GPUs, but this machine shows 0; c"),
        (make_gpus(2), "0,7", {}, ExitCode.USAGE, r"'7' is no GPU of this machine"),
        (ONE_BUSY, None, {}, ExitCode.UNFIT, r"GPU 1 .* is used by 1 other process,"),
        (
            *(make_gpus(2), None, seen(0, has_cuda=False), ExitCode.UNFIT),
            r"TensorFlow sees 0 GPUs, .* make setup-gpu ",
        ),
        (
            *(make_gpus(2), "another sweep", {}, ExitCode.UNFIT),
            r"GPU 1 .* used by another sweep \(study 'other'",
        ),
    ],
)
def test_a_study_is_continued_on_gpus_that_are_free(
    resume, written, monkeypatch, machine, limit, more, code, message
):
    before = written()
    with contextlib.ExitStack() as stack:
        if limit == "another sweep":
            held = gpu_watch.hold_gpus(gpus.read_gpus()[1:], study="other")
            stack.enter_context(held)
        elif limit is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", limit)
        found, out, err = resume(machine, **more)

    assert code == found, err
    if message:
        assert "" == out
        assert re.fullmatch(rf"error: .*{message}.*\n", err)
        assert before == written()


WITHOUT_MATCH = smoke_sweep(
    "--device=gpu --backends=in_graph --mode=weak --repeats=1 --order=sequential "
    "--budget=none --no-match"
)


def test_what_did_not_fit_is_refused_with_what_does(
    harness, gpu_overrides, install_gpus, written, monkeypatch
):
    def sweep(size, study, *options, behavior="", **fields):
        install_gpus(make_gpus(2, **fields))
        monkeypatch.setenv("FAKE_BEHAVIOR", behavior)
        own = (f"--per-replica-batch-size={size}", f"--study={study}", "--replicas=1")
        words = (*WITHOUT_MATCH, *overridden(own, *options))
        return harness(*words, overrides=gpu_overrides)

    assert ExitCode.OK == sweep(4, "small")[0]
    assert ExitCode.NOTHING_MEASURED == sweep(64, "big", behavior="*:*:oom")[0]
    before = written()
    code, out, err = sweep(128, "bigger")

    assert (ExitCode.USAGE, "") == (code, out)
    assert re.fullmatch(
        r"error: 1 x 128 examples do not fit with backend 'in_graph': 1 x 64 ran out of"
        r" memory on NVIDIA H100 80GB HBM3 in study 'big'; 4 fits: use"
        r" --per-replica-batch-size 4, or --retry failed to try it again\n",
        err,
    )
    assert before == written()
    # What may fit is run.
    assert ExitCode.OK == sweep(32, "smaller")[0]
    assert ExitCode.OK == sweep(64, "other", name="NVIDIA H200")[0]
    assert ExitCode.OK == sweep(64, "third", "--retry=failed")[0]
    assert ExitCode.NOTHING_MEASURED == sweep(64, "big")[0]
