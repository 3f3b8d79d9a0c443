"""One sweep per GPU: locks that end with their process, and the driver's list."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_nvml import FakeGpu, FakeMig, make_gpus

from harness.errors import UnfitMachineError
from harness.machine import gpu_exclusive, gpus

ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import pathlib, sys
from harness.machine import gpu_exclusive, gpus
gpu_exclusive.lock_folder = lambda: pathlib.Path(sys.argv[1])
gpu = gpus.Gpu(index=0, uuid=sys.argv[2], name="H100")
with gpu_exclusive.hold([gpu], study="theirs"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
def test_a_lock_keeps_other_processes_out_until_its_own_has_ended(install_gpus):
    """Also when that was killed: no lock is left."""
    install_gpus(make_gpus(2))
    first, second = gpus.read_gpus()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(gpu_exclusive.lock_folder()), first.uuid],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert "held\n" == other.stdout.readline()
        with (
            pytest.raises(
                UnfitMachineError,
                match=rf"by another sweep \(study 'theirs', process {other.pid}",
            ),
            gpu_exclusive.hold([second, first], study="ours"),
        ):
            pass
        with gpu_exclusive.hold([second], study="ours"):
            pass  # it was released with the failed attempt
        other.kill()
    with gpu_exclusive.hold([first], study="ours"):
        pass


def test_no_gpu_needs_no_lock(monkeypatch):
    """Trials on CPUs take turns in a relay, and touch nothing here."""
    monkeypatch.setattr(gpu_exclusive, "lock_folder", None)
    with gpu_exclusive.hold((), study="ours"):
        pass
    assert "" == gpu_exclusive.wait_until_free(())


def test_the_lock_of_another_user_can_be_read_only(install_gpus, monkeypatch):
    """Then it says who holds it no better than that user wrote it."""
    install_gpus(make_gpus(1))
    (gpu,) = gpus.read_gpus()
    with gpu_exclusive.hold([gpu], study="theirs"):
        pass
    opened = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    with (
        gpu_exclusive.hold([gpu], study="ours"),
        pytest.raises(
            UnfitMachineError, match=r"used by another sweep \(study 'theirs'"
        ),
        gpu_exclusive.hold([gpu], study="second"),
    ):
        pass


def test_a_link_in_place_of_a_lock_is_not_followed(install_gpus, tmp_path):
    """Its target is not ours to write."""
    install_gpus(make_gpus(1))
    (gpu,) = gpus.read_gpus()
    with gpu_exclusive.hold([gpu], study="ours"):
        (lock,) = gpu_exclusive.lock_folder().iterdir()
    lock.unlink()
    target = tmp_path / "precious"
    target.write_text("kept")
    lock.symlink_to(target)
    with (
        pytest.raises(
            UnfitMachineError, match=r"cannot lock GPU 0 .*; remove that file"
        ),
        gpu_exclusive.hold([gpu], study="ours"),
    ):
        pass

    assert "kept" == target.read_text()


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (make_gpus(8), ""),
        ([FakeGpu(users=[1])], "1 other process used GPU 0"),
        ([FakeGpu(users=[1, 2**22 + 1])], "2 other processes used GPU 0"),
        # None of ours runs yet, so an id of another name space is of others too.
        ([FakeGpu(users=[2**22 + 1])], "1 other process used GPU 0"),
        ([FakeGpu(users=[os.getpid()])], ""),
        ([FakeGpu(users=[1], mig=[FakeMig(uuid="MIG-1")])], "1 other .* GPU 0"),
        (
            [FakeGpu(unsupported=frozenset({"nvmlDeviceGetComputeRunningProcesses"}))],
            "",
        ),
    ],
)
def test_who_uses_a_gpu_before_a_trial_is_of_others(install_gpus, machine, expected):
    """Where the driver lists nobody, nobody is known."""
    install_gpus(machine)

    assert re.fullmatch(expected, gpu_exclusive.wait_until_free(gpus.read_gpus()))


def test_a_gpu_that_cannot_be_read_is_not_free(install_gpus):
    """Nobody knows who uses it."""
    machine = make_gpus(1)
    install_gpus(machine)
    chosen = gpus.read_gpus()
    machine[0].is_lost = True

    assert (
        "GPU 0 could not be read (GPU is lost): nobody knows who used it"
        == gpu_exclusive.wait_until_free(chosen)
    )
