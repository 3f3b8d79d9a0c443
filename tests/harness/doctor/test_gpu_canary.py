"""A matrix product on each GPU finds the one that is slower than the others."""

import re

import pytest
from fake_nvml import FakeGpu, FakeMig, make_gpus

from harness.cli import exit_codes
from harness.doctor import diagnose, gpu_canary
from harness.errors import DoctorError
from harness.trial.gpu_probe import TensorFlowGpus


def _probe(ids):
    return TensorFlowGpus(num_gpus=len(ids), is_built_with_cuda=True)


def test_a_slow_gpu_is_bad_and_a_shared_limit_is_a_caution():
    """Alone against the median; together against alone."""
    rates = {
        "alone": [600.0, 610.0, 500.0, 600.0],
        "together": [590.0, 500.0, 495, 598],
    }
    findings = gpu_canary.check_rates(rates, operations=1e12)

    assert ["ok", "caution", "bad", "ok"] == [f.level for f in findings]
    expected = "500 TFLOP/s, 0.83 of the median, 0.99 of it when all run"
    assert expected == findings[2].found
    assert "product on GPU 2" == findings[2].check
    assert re.match("every step would wait for it", findings[2].advice)
    assert re.match("GPUs share power", findings[1].advice)


def test_one_gpu_has_no_others_to_compare_with():
    (finding,) = gpu_canary.check_rates({"alone": [3.0], "together": [3.0]}, 1e12)

    assert ("ok", "3 TFLOP/s") == (finding.level, finding.found)


def test_all_visible_gpus_are_timed(install_gpus, monkeypatch):
    """By the ids of CUDA_VISIBLE_DEVICES, and as TensorFlow numbers them."""
    install_gpus(make_gpus(4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    calls = []

    def multiply(ids, devices):
        calls.append((ids, devices))
        return {"alone": [9.0, 9.0], "together": [9.0, 9.0]}

    findings = gpu_canary.check_gpus([0], probe=_probe, multiply=multiply)

    assert [(["1", "3"], ["GPU:0", "GPU:1"])] == calls
    assert {"ok"} == {f.level for f in findings}
    assert "product on GPU 1" == findings[-1].check


@pytest.mark.parametrize(
    "machine", [[], [FakeGpu(mig=[FakeMig(uuid="MIG-1"), FakeMig(uuid="MIG-2")])]]
)
def test_what_cannot_be_used_is_not_timed(install_gpus, machine):
    """The finding before says why."""
    install_gpus(machine)
    findings = gpu_canary.check_gpus([0], probe=_probe, multiply=None)

    assert "bad" in {f.level for f in findings}


@pytest.mark.processes
def test_the_product_runs_on_any_device():
    """Here on the CPU, twice; all rates are those of real products."""
    rates = gpu_canary.multiply([], ["CPU:0", "CPU:0"], size=64, turn_sec=0.05)

    assert [2, 2] == [len(rates["alone"]), len(rates["together"])]
    assert all(rate > 1 for rate in (*rates["alone"], *rates["together"]))


@pytest.mark.processes
def test_a_product_that_fails_is_one_line(tmp_path, monkeypatch):
    """It says which product failed, and the last line says why."""
    (tmp_path / "tensorflow.py").write_text("raise ImportError('no libcudart\\n.so')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        DoctorError,
        match=r"^the matrix product on GPU:0 failed: [^\n]*\.so; see [^\n]*$",
    ):
        gpu_canary.multiply(["0"], ["GPU:0"])


@pytest.mark.full
@pytest.mark.processes
def test_a_device_that_does_not_exist_is_one_line():
    """TensorFlow takes no other in its place, which only the full run tries."""
    with pytest.raises(
        DoctorError, match=r"the matrix product on GPU:7 failed: .*;"
    ) as e:
        gpu_canary.multiply([], ["GPU:7"], size=64, turn_sec=0.05)

    assert "\n" not in str(e.value)


def test_the_verb_checks_gpus_where_a_sweep_would_use_them(
    harness, install_gpus, monkeypatch
):
    """With --device gpu: no GPU is unfit, and the table says what to do."""
    install_gpus([], driver=None)
    monkeypatch.setattr(
        diagnose, "diagnose", lambda measures: [*measures[-1]([0])] if measures else []
    )
    code, out, _ = harness("doctor", "--device=gpu", "--relay=0")

    assert exit_codes.UNFIT == code
    assert re.search(r"GPUs +bad +none +install the NVIDIA driver", out)
    assert out.endswith("unfit for timings: GPUs\n")
