"""Requests for GPUs that cannot be carried out are one line, and write nothing."""

import re

import pytest
from fake_nvml import FakeGpu, FakeMig, make_gpus

from harness.cli import exit_codes
from harness.trial.gpu_probe import TensorFlowGpus

SWEEP = (
    "sweep",
    "--workload=resnet50",
    "--preset=smoke",
    "--device=gpu",
    "--backends=in_graph",
    "--mode=weak",
    "--repeats=1",
)
MIG = [FakeGpu(mig=[FakeMig(uuid="MIG-1"), FakeMig(uuid="MIG-2")])]
MIXED = [*make_gpus(2), FakeGpu(uuid="GPU-a", name="NVIDIA A100-SXM4-80GB")]
BUSY = [*make_gpus(2), FakeGpu(uuid="GPU-b", users=[1, 2])]
HIDDEN = [
    FakeGpu(
        utilization=40,
        unsupported=frozenset({"nvmlDeviceGetComputeRunningProcesses"}),
    )
]


@pytest.mark.parametrize(
    ("machine", "replicas", "limit", "code", "message"),
    [
        (
            [],
            "1",
            None,
            exit_codes.USAGE,
            (
                r"--device gpu: this machine shows 0 GPUs \(NVIDIA driver missing, or"
                r" hidden"
                r" by CUDA_VISIBLE_DEVICES\); use --device cpu"
            ),
        ),
        (
            make_gpus(2),
            "1,4",
            None,
            exit_codes.USAGE,
            (
                r"--replicas needs 4 GPUs, but this machine shows 2; use at most"
                r" --replicas"
                r" 2"
            ),
        ),
        (
            make_gpus(8),
            "1,2",
            "0",
            exit_codes.USAGE,
            r"--replicas needs 2 GPUs, but this machine shows 1",
        ),
        (
            make_gpus(8),
            "1,2",
            "0,0",
            exit_codes.USAGE,
            (
                r"CUDA_VISIBLE_DEVICES=0,0 names GPU 0 twice, so CUDA would show none;"
                r" name"
                r" each GPU once"
            ),
        ),
        (
            make_gpus(2),
            "1,2",
            "GPU-00ab,GPU-oops",
            exit_codes.USAGE,
            (
                r"'GPU-oops' is no GPU of this machine, so CUDA would hide it and all"
                r" after"
                r" it; allowed are 0, 1 and the UUIDs that 'nvidia-smi -L' lists"
            ),
        ),
        (
            MIG,
            "1,2",
            None,
            exit_codes.USAGE,
            (
                r"2 replicas need 2 GPUs, but this machine's are in MIG mode, .*; use"
                r" --replicas 1, or switch MIG off: sudo nvidia-smi -mig 0"
            ),
        ),
        (
            MIXED,
            "1,3",
            None,
            exit_codes.USAGE,
            (
                r"3 replicas need 3 GPUs of one model, but GPU 0\+1 are NVIDIA H100"
                r" 80GB"
                r" HBM3, GPU 2 is NVIDIA A100-SXM4-80GB; choose equal ones with"
            ),
        ),
        (
            BUSY,
            "1,3",
            None,
            exit_codes.UNFIT,
            (
                r"GPU 2 \(NVIDIA H100 80GB HBM3\) is used by 2 other processes, but a"
                r" trial"
                r" needs its GPUs for itself; end the others \('nvidia-smi' lists"
                r" them\), or"
                r" leave it out: CUDA_VISIBLE_DEVICES=0,1"
            ),
        ),
        (
            HIDDEN,
            "1",
            None,
            exit_codes.UNFIT,
            (
                r"GPU 0 \(NVIDIA H100 80GB HBM3\) is 40 % busy, but a trial needs its"
                r" GPUs"
                r" for itself; end the others \('nvidia-smi' lists them\)$"
            ),
        ),
    ],
)
def test_gpus_that_a_sweep_cannot_use_are_one_line(
    harness,
    gpu_overrides,
    install_gpus,
    monkeypatch,
    written,
    machine,
    replicas,
    limit,
    code,
    message,
):
    install_gpus(machine)
    if limit is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", limit)
    found, out, err = harness(*SWEEP, f"--replicas={replicas}", overrides=gpu_overrides)

    assert (code, "") == (found, out)
    assert re.fullmatch(rf"error: .*{message}.*\n", err)
    assert [] == written()


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (
            TensorFlowGpus(num_gpus=0, is_built_with_cuda=False),
            (
                r"TensorFlow sees 0 GPUs, but was given 2"
                r" \(CUDA_VISIBLE_DEVICES=0,1\): this"
                r" build of TensorFlow has no CUDA; install one that has with make"
                r" setup-gpu"
                r" \(it installs requirements-gpu.lock\), or use --device cpu"
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
