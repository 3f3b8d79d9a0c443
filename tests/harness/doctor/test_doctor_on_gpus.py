"""``doctor --device gpu`` as its user sees it, with every kind of machine."""

import functools
import os
import re

import pytest
from fake_nvml import FakeGpu, FakeMig, make_gpus

from harness.cli import exit_codes
from harness.cli.verbs import doctor_verb
from harness.doctor import diagnose, gpu, gpu_canary, gpu_state
from harness.machine import gpu_exclusive, gpus
from harness.trial.gpu_probe import TensorFlowGpus

MIXED = [*make_gpus(2), FakeGpu(uuid="GPU-a", name="NVIDIA A100-SXM4-80GB")]
BUSY = [*make_gpus(1), FakeGpu(uuid="GPU-b", users=[1])]
MIG = [FakeGpu(mig=[FakeMig(uuid="MIG-1"), FakeMig(uuid="MIG-2")])]
LIMITED = make_gpus(2, power_limit_watts=400.0)


def _multiply(ids, _devices):
    return {"alone": [9.0] * len(ids), "together": [9.0] * len(ids)}


@pytest.fixture
def doctor(install_gpus, monkeypatch, capsys):
    """Returns a function that runs the verb's checks of GPUs, and none of cores."""
    check = functools.partial(gpu_canary.check_gpus, multiply=_multiply)
    monkeypatch.setattr(gpu_canary, "check_gpus", check)
    monkeypatch.setattr(
        diagnose,
        "diagnose",
        lambda measures: [
            *gpu.check_gpus(gpu_state.read_gpu_states(os.getpid())),
            *measures[-1]([0]),
        ],
    )

    def run(machine, num_seen=None, **fields):
        def probe(ids):
            return TensorFlowGpus(
                num_gpus=len(ids) if num_seen is None else num_seen,
                is_built_with_cuda=True,
                cuda_version="12.5.1",
                cudnn_version="9",
            )

        install_gpus(machine, **fields)
        code = doctor_verb.doctor(is_json=False, relay_sec=0, device="gpu", probe=probe)
        return code, capsys.readouterr().out

    return run


@pytest.mark.parametrize("count", [1, 8])
def test_equal_and_idle_gpus_are_fit(doctor, count):
    code, out = doctor(make_gpus(count))

    assert exit_codes.OK == code, out
    assert count == len(re.findall(r"product on GPU \d+ +ok", out))
    assert out.endswith("fit for timings\n")


@pytest.mark.parametrize(
    ("machine", "fields", "found", "advice"),
    [
        ([], {}, r"GPUs +bad +none visible, driver 570", "install the NVIDIA driver"),
        ([], {"driver": None}, r"GPUs +bad +none", "install the NVIDIA driver"),
        (BUSY, {}, r"GPU 1 +bad .*1 other process", "end its other users"),
        (make_gpus(2, reasons=0x20), {}, r"slowed by heat", "let it cool"),
        (make_gpus(2, reasons=0x80), {}, r"slowed by power", "let it cool"),
        (LIMITED, {}, r"limited to 400 of 700 W", "nvidia-smi -i 0 -pl 700"),
        (make_gpus(1, uncorrected_errors=3), {}, r"3 uncorrected", "--gpu-reset"),
        (MIG, {}, r"MIG +bad +on, 2 instances", "nvidia-smi -mig 0"),
        (MIXED, {}, r"GPU models +bad .*A100", "hide those of other models"),
        (make_gpus(2), {"cuda": 11_080}, r"driver +bad", "a driver for CUDA 12.5"),
        (make_gpus(2), {"num_seen": 1}, r"TensorFlow +bad +TensorFlow sees 1", "skips"),
        (
            make_gpus(2),
            {"num_seen": 0},
            r"TensorFlow +bad +.* sees 0",
            "make setup-gpu",
        ),
    ],
)
def test_what_makes_gpus_unfit_is_found_with_its_remedy(
    doctor, machine, fields, found, advice
):
    """Exit code 6; the table may break lines, so words are compared."""
    code, out = doctor(machine, **fields)
    text = " ".join(out.split())

    assert exit_codes.UNFIT == code, out
    assert re.search(found, text), out
    assert set(advice.split()) <= set(re.split(r"[ ,()]", text)), out
    assert re.search(r"unfit for timings: ", out)


def test_gpus_of_a_sweep_are_not_timed(doctor, install_gpus):
    """That would make its trials void."""
    install_gpus(make_gpus(2))
    with gpu_exclusive.hold(gpus.read_gpus()[1:], study="s"):
        code, out = doctor(make_gpus(2))

    assert exit_codes.UNFIT == code
    assert "product on GPU" not in out
    assert re.search(r"other sweeps +bad +GPU 1 .* is used by another sweep", out)
