"""A study on GPUs is continued only where they can be used; nothing else changes."""

import re
import shutil

import pytest
from fake_nvml import FakeGpu, FakeMig, make_gpus

from harness.cli import exit_codes
from harness.machine import gpu_exclusive, gpus
from harness.trial.gpu_probe import TensorFlowGpus

pytestmark = pytest.mark.usefixtures("forked_trials")

MIG = [FakeGpu(mig=[FakeMig(uuid="MIG-1"), FakeMig(uuid="MIG-2")])]
MIXED = [FakeGpu(uuid="GPU-1"), FakeGpu(uuid="GPU-2", name="NVIDIA A100")]
BUSY = [FakeGpu(uuid="GPU-1"), FakeGpu(uuid="GPU-2", users=[1])]
HIDES_ITS_USERS = [
    FakeGpu(
        uuid=f"GPU-{i}",
        utilization=90,
        unsupported=frozenset({"nvmlDeviceGetComputeRunningProcesses"}),
    )
    for i in range(2)
]


@pytest.fixture(scope="module")
def failed_study(tmp_path_factory):
    """Returns where the first test leaves its study for the others."""
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


def test_a_study_is_continued_on_gpus_that_are_free(resume):
    """The same study, which the tests below cannot continue."""
    code, _, err = resume(make_gpus(8))

    assert exit_codes.OK == code, err


@pytest.mark.parametrize(
    ("machine", "limit", "code", "message"),
    [
        ([], None, exit_codes.USAGE, r"needs 2 GPUs, but this machine shows 0; cont"),
        (make_gpus(1), None, exit_codes.USAGE, r"needs 2 GPUs, but .* shows 1; cont"),
        (make_gpus(2), "1,1", exit_codes.USAGE, r"=1,1 names GPU 1 twice"),
        (make_gpus(2), "0,7", exit_codes.USAGE, r"'7' is no GPU of this machine"),
        (MIG, None, exit_codes.USAGE, r"this machine's are in MIG mode"),
        (MIXED, None, exit_codes.USAGE, r"2 replicas need 2 GPUs of one model"),
        (BUSY, None, exit_codes.UNFIT, r"GPU 1 .* is used by 1 other process, but"),
        (HIDES_ITS_USERS, None, exit_codes.UNFIT, r"GPU 0 .* is 90 % busy, but"),
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


def test_a_tensorflow_without_cuda_does_not_continue_a_study(resume, written):
    """It would continue it on the CPU."""
    blind = TensorFlowGpus(num_gpus=0, is_built_with_cuda=False)
    before = written()
    code, _, err = resume(make_gpus(2), probe=lambda _ids: blind)

    assert exit_codes.UNFIT == code
    assert re.fullmatch(r"error: TensorFlow sees 0 GPUs, .* make setup-gpu .*\n", err)
    assert before == written()


def test_a_study_is_not_continued_beside_another_sweep(resume, written, install_gpus):
    """The second GPU is enough."""
    install_gpus(make_gpus(2))
    before = written()
    with gpu_exclusive.hold(gpus.read_gpus()[1:], study="other"):
        code, _, err = resume(make_gpus(2))

    assert exit_codes.UNFIT == code
    assert re.fullmatch(
        r"error: GPU 1 .* used by another sweep \(study 'other'.*\n", err
    )
    assert before == written()
