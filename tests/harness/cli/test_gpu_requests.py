"""Sweeps on GPUs that cannot be carried out or continued are one line each."""

import re
import shutil

import pytest
from command_words import overridden, smoke_sweep
from fake_nvml import FakeGpu, FakeMig, make_gpus, without

from harness.cli import exit_codes
from harness.machine import gpu_watch, gpus
from harness.trial.gpu_probe import TensorFlowGpus

SWEEP = smoke_sweep("--device=gpu --backends=in_graph --mode=weak --repeats=1")
MIG = [FakeGpu(mig=[FakeMig(uuid="MIG-1"), FakeMig(uuid="MIG-2")])]
MIXED = [*make_gpus(2), FakeGpu(uuid="GPU-a", name="NVIDIA A100-SXM4-80GB")]
BUSY = [*make_gpus(2), FakeGpu(uuid="GPU-b", users=[1, 2])]
HIDES_ITS_USER = [
    FakeGpu(
        utilization=40,
        unsupported=without("ComputeRunningProcesses"),
    )
]


UNUSABLE = [
    (
        [],
        "1",
        None,
        (
            r"--device gpu: this machine shows 0 GPUs \(NVIDIA driver missing, or"
            r" hidden by CUDA_VISIBLE_DEVICES\); use --device cpu"
        ),
    ),
    (
        make_gpus(2),
        "1,4",
        None,
        (
            r"--replicas needs 4 GPUs, but this machine shows 2; use at most"
            r" --replicas 2"
        ),
    ),
    (make_gpus(8), "1,2", "0", r"--replicas needs 2 GPUs, but this machine shows 1"),
    (
        make_gpus(2),
        "1,2",
        "GPU-00ab,GPU-oops",
        (
            r"'GPU-oops' is no GPU of this machine, so CUDA would hide it and all"
            r" after it; allowed are 0, 1 and the UUIDs that 'nvidia-smi -L' lists"
        ),
    ),
    (
        MIG,
        "1,2",
        None,
        (
            r"2 replicas need 2 GPUs, but this machine's are in MIG mode, .*; use"
            r" --replicas 1, or switch MIG off: sudo nvidia-smi -mig 0"
        ),
    ),
    (
        MIXED,
        "1,3",
        None,
        (
            r"3 replicas need 3 GPUs of one model, but GPU 0\+1 are NVIDIA H100"
            r" 80GB HBM3, GPU 2 is NVIDIA A100-SXM4-80GB; choose equal ones with"
            r" CUDA_VISIBLE_DEVICES, such as CUDA_VISIBLE_DEVICES=0,1(?!,)"
        ),
    ),
    (
        BUSY,
        "1,3",
        None,
        (
            r"GPU 2 \(NVIDIA H100 80GB HBM3\) is used by 2 other processes, but a"
            r" trial needs its GPUs for itself; end the others \('nvidia-smi' lists"
            r" them\), or leave it out: CUDA_VISIBLE_DEVICES=0,1"
        ),
    ),
    (
        HIDES_ITS_USER,
        "1",
        None,
        (
            r"GPU 0 \(NVIDIA H100 80GB HBM3\) is 40 % busy, but a trial needs its"
            r" GPUs for itself; end the others \('nvidia-smi' lists them\)$"
        ),
    ),
]


@pytest.mark.parametrize(("machine", "replicas", "limit", "message"), UNUSABLE)
def test_gpus_that_a_sweep_cannot_use_are_one_line(
    harness,
    gpu_overrides,
    install_gpus,
    monkeypatch,
    written,
    machine,
    replicas,
    limit,
    message,
):
    """Where somebody else has the GPUs, the machine is unfit."""
    install_gpus(machine)
    if limit is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", limit)
    found, out, err = harness(*SWEEP, f"--replicas={replicas}", overrides=gpu_overrides)

    code = exit_codes.UNFIT if "for itself" in message else exit_codes.USAGE
    assert (code, "") == (found, out)
    assert re.fullmatch(rf"error: .*{message}.*\n", err)
    assert [] == written()


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (
            TensorFlowGpus(num_gpus=0, is_built_with_cuda=False),
            (
                r"TensorFlow sees 0 GPUs, but was given 2 \(CUDA_VISIBLE_DEVICES=0,1\):"
                r" this build of TensorFlow has no CUDA; install one that has with make"
                r" setup-gpu \(it installs requirements-gpu.lock\), or use --device cpu"
            ),
        ),
        (
            TensorFlowGpus(
                num_gpus=0,
                is_built_with_cuda=True,
                cuda_version="12.5.1",
                cudnn_version="9",
            ),
            (
                r"TensorFlow sees 0 GPUs, but was given 2 .*: it cannot load CUDA"
                r" 12.5.1 and"
                r" cuDNN 9, which it was built with; install them with make setup-gpu"
            ),
        ),
        (
            TensorFlowGpus(num_gpus=1, is_built_with_cuda=True),
            (
                r"TensorFlow sees 1 GPUs, but was given 2 .*: it skips the others;"
                r" TF_CPP_MIN_LOG_LEVEL=0 .* -m harness.trial.gpu_probe says why"
            ),
        ),
    ],
)
def test_a_tensorflow_that_does_not_see_the_gpus_is_one_line(
    harness, overrides, install_gpus, written, seen, message
):
    """It would run on the CPU, and say nothing."""
    install_gpus(make_gpus(8))
    code, out, err = harness(
        *SWEEP, "--replicas=1,2", overrides=overrides | {"probe": lambda _ids: seen}
    )

    assert (exit_codes.UNFIT, "") == (code, out)
    assert re.fullmatch(rf"error: {message}.*\n", err)
    assert [] == written()


def test_a_plan_does_not_ask_tensorflow(harness, install_gpus, written):
    """Nor who uses the GPUs now."""
    install_gpus(BUSY)
    code, out, _ = harness("sweep", "--dry-run", *SWEEP[1:], "--replicas=1,2")

    assert exit_codes.OK == code
    assert "in_graph" in out
    assert [] == written()


ONE_BUSY = [FakeGpu(uuid="GPU-1"), FakeGpu(uuid="GPU-2", users=[1])]


@pytest.fixture(scope="module")
def failed_study(tmp_path_factory):
    return tmp_path_factory.mktemp("failed") / "runs"


@pytest.fixture
def resume(harness, gpu_overrides, install_gpus, failed_study, tmp_path, monkeypatch):
    """Returns a function that resumes a study of two GPUs, whose trials failed."""
    install_gpus(make_gpus(2))
    if failed_study.exists():
        shutil.copytree(failed_study, tmp_path / "runs")
    else:
        monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:fail")
        options = ("--backends=in_graph", "--replicas=1,2", "--repeats=1")
        options = (*options, "--budget=none", "--no-match")
        sweep = ("sweep", "--workload=resnet50", "--preset=smoke", "--device=gpu")
        sweep = (*sweep, *options, "--mode=weak", "--study=s")
        code, _, err = harness(*sweep, overrides=gpu_overrides)
        assert exit_codes.NOTHING_MEASURED == code, err
        monkeypatch.delenv("FAKE_BEHAVIOR")
        shutil.copytree(tmp_path / "runs", failed_study)

    def run(machine, **overrides):
        install_gpus(machine)
        return harness(
            "sweep",
            "--study",
            "s",
            "--retry=failed",
            overrides=gpu_overrides | overrides,
        )

    return run


@pytest.mark.usefixtures("forked_trials")
def test_a_study_is_continued_on_gpus_that_are_free(resume):
    """The same study, which the tests below cannot continue."""
    code, _, err = resume(make_gpus(8))

    assert exit_codes.OK == code, err


@pytest.mark.usefixtures("forked_trials")
@pytest.mark.parametrize(
    ("machine", "limit", "code", "message"),
    [
        ([], None, exit_codes.USAGE, r"needs 2 GPUs, but this machine shows 0; cont"),
        (make_gpus(2), "0,7", exit_codes.USAGE, r"'7' is no GPU of this machine"),
        (ONE_BUSY, None, exit_codes.UNFIT, r"GPU 1 .* is used by 1 other process, but"),
    ],
)
def test_gpus_that_cannot_continue_a_study_are_one_line(
    resume, written, monkeypatch, machine, limit, code, message
):
    if limit is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", limit)
    before = written()
    found, out, err = resume(machine)

    assert (code, "") == (found, out)
    assert re.fullmatch(rf"error: .*{message}.*\n", err)
    assert before == written()


@pytest.mark.usefixtures("forked_trials")
def test_a_tensorflow_without_cuda_does_not_continue_a_study(resume, written):
    """It would continue it on the CPU."""
    blind = TensorFlowGpus(num_gpus=0, is_built_with_cuda=False)
    before = written()
    code, _, err = resume(make_gpus(2), probe=lambda _ids: blind)

    assert exit_codes.UNFIT == code
    assert re.fullmatch(r"error: TensorFlow sees 0 GPUs, .* make setup-gpu .*\n", err)
    assert before == written()


@pytest.mark.usefixtures("forked_trials")
def test_a_study_is_not_continued_beside_another_sweep(resume, written, install_gpus):
    install_gpus(make_gpus(2))
    before = written()
    with gpu_watch.hold_gpus(gpus.read_gpus()[1:], study="other"):
        code, _, err = resume(make_gpus(2))

    assert exit_codes.UNFIT == code
    assert re.fullmatch(
        r"error: GPU 1 .* used by another sweep \(study 'other'.*\n", err
    )
    assert before == written()


WITHOUT_MATCH = smoke_sweep(
    "--device=gpu --backends=in_graph --mode=weak --repeats=1 --order=sequential "
    "--budget=none --no-match"
)


@pytest.fixture
def sweep(harness, gpu_overrides, install_gpus, monkeypatch):
    def run(size, study, *options, behavior="", **fields):
        install_gpus(make_gpus(2, **fields))
        monkeypatch.setenv("FAKE_BEHAVIOR", behavior)
        own = (f"--per-replica-batch-size={size}", f"--study={study}", "--replicas=1")
        words = (*WITHOUT_MATCH, *overridden(own, *options))
        return harness(*words, overrides=gpu_overrides)

    return run


@pytest.mark.usefixtures("forked_trials")
def test_what_did_not_fit_is_refused_with_what_does(sweep, written):
    assert exit_codes.OK == sweep(4, "small")[0]
    assert exit_codes.NOTHING_MEASURED == sweep(64, "big", behavior="*:*:oom")[0]
    before = written()
    code, out, err = sweep(128, "bigger")

    assert (exit_codes.USAGE, "") == (code, out)
    assert re.fullmatch(
        r"error: 1 x 128 examples do not fit with backend 'in_graph': 1 x 64 ran out of"
        r" memory on NVIDIA H100 80GB HBM3 in study 'big'; 4 fits: use"
        r" --per-replica-batch-size 4, or --retry failed to try it again\n",
        err,
    )
    assert before == written()


@pytest.mark.usefixtures("forked_trials")
def test_without_one_that_fitted_it_is_an_upper_limit(sweep):
    """Nothing is claimed about smaller ones."""
    sweep(64, "big", behavior="*:*:oom")
    _, _, err = sweep(64, "again")

    assert "; use less than --per-replica-batch-size 64, or --retry failed" in err


@pytest.mark.usefixtures("forked_trials")
def test_what_may_fit_is_run(sweep):
    sweep(64, "big", behavior="*:*:oom")

    assert exit_codes.OK == sweep(32, "smaller")[0]
    assert exit_codes.OK == sweep(64, "other", name="NVIDIA H200")[0]
    assert exit_codes.OK == sweep(64, "third", "--retry=failed")[0]
    assert exit_codes.NOTHING_MEASURED == sweep(64, "big")[0]


@pytest.mark.usefixtures("forked_trials")
def test_memory_that_two_gpus_lack_says_nothing_of_one(sweep):
    """Collectives need buffers: only as many GPUs or more are refused."""
    sweep(64, "big", "--replicas=1,2", behavior="*:2:oom")
    _, _, err = sweep(64, "again", "--replicas=1,2")

    assert err.startswith("error: 2 x 64 examples do not fit")
