"""GPUs: which there are, their settings, and what others do on them meanwhile."""

import os
import subprocess
import sys
import time

import pynvml
import pytest
from fake_machine import FakeGpu, FakeMig, make_gpus, without

from harness import PlanError
from harness.machine import gpu_watch, gpus
from harness.machine.gpu_watch import GpuReading, GpuWatch
from results import GpuSettings, GpuUse


def _visible(limit):
    variables = {} if limit is None else {"CUDA_VISIBLE_DEVICES": limit}
    return [gpu.cuda_id for gpu in gpus.visible_gpus(variables)]


@pytest.mark.parametrize("count", [0, 1, 8])
def test_every_gpu_of_the_driver_is_found(install_gpus, count):
    nvml = install_gpus(make_gpus(count))
    found = gpus.read_gpus()

    assert [str(i) for i in range(count)] == [gpu.cuda_id for gpu in found]
    assert 0 == nvml.num_open


@pytest.mark.parametrize(
    ("text", "expected"), [("1\n", 1), ("-1\n", None), ("x", None), (None, None)]
)
def test_the_kernel_says_which_node_a_gpu_is_attached_to(fake_root, text, expected):
    if text is not None:
        fake_root.write("sys/bus/pci/devices/0000:1b:00.0/numa_node", text)

    assert expected == gpus.read_node("00000000:1B:00.0", fake_root.path)


def test_instances_take_the_place_of_a_gpu_in_mig_mode(install_gpus):
    mig = [FakeMig(uuid="MIG-1"), FakeMig(uuid="MIG-2")]
    install_gpus([FakeGpu(uuid="GPU-a", mig=mig), FakeGpu(uuid="GPU-b")])
    found = gpus.read_gpus()

    assert ["MIG-1", "MIG-2", "GPU-b"] == [gpu.cuda_id for gpu in found]
    assert [0, 0, 1] == [gpu.index for gpu in found]
    assert [True, True, False] == [gpu.is_mig for gpu in found]
    assert ["MIG-1"] == [gpu.cuda_id for gpu in gpus.choose(found, 1)]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, ["0", "1"]),
        ("1", ["1"]),
        ("1, 0", ["1", "0"]),
        ("", []),
        ("-1", []),
        ("1,-1,0", ["1"]),
        ("GPU-01ab,GPU-00", ["1", "0"]),
    ],
)
def test_a_limit_on_visible_gpus_is_respected(install_gpus, limit, expected):
    install_gpus(make_gpus(2))

    assert expected == _visible(limit)


MISTAKES = [
    ("0,0", r"names GPU 0 twice, so CUDA would show none; name each GPU once"),
    ("0,7,1", r"'7' is no GPU of this machine, so CUDA would hide it and all after"),
    ("GPU-ffff", r"'GPU-ffff' is no GPU of this .*; allowed are 0, 1 and the UUIDs"),
    ("GPU-", r"'GPU-' is the beginning of 2 ids \(GPU-00ab, GPU-01ab\)"),
    ("0\n1", r"'0\\n1' is no GPU"),
]


@pytest.mark.parametrize(("limit", "message"), MISTAKES)
def test_a_mistake_in_the_limit_is_an_error(install_gpus, limit, message):
    install_gpus(make_gpus(2))
    with pytest.raises(PlanError, match=message) as caught:
        _visible(limit)

    assert str(caught.value).startswith("CUDA_VISIBLE_DEVICES=")
    assert "\n" not in str(caught.value)


def test_a_lost_gpu_is_no_free_one(install_gpus):
    machine = make_gpus(3)
    machine[1].is_lost = True
    install_gpus(machine)

    assert ["", "GPU is lost", ""] == [gpu.fault for gpu in gpus.read_gpus()]
    message = r"GPU 1 cannot be read \(GPU is lost\), .*CUDA_VISIBLE_DEVICES=0,2"
    with pytest.raises(PlanError, match=message):
        _visible(None)
    assert ["0", "2"] == _visible("0,2")
    assert 3 == len(gpus.listed_gpus({}))


@pytest.mark.parametrize(
    ("number", "is_fault"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, False),
        (pynvml.NVML_ERROR_GPU_IS_LOST, True),
        (pynvml.NVML_ERROR_UNKNOWN, True),
    ],
)
def test_what_a_gpu_does_not_have_is_no_fault(
    install_gpus, monkeypatch, number, is_fault
):
    def fail(*_):
        raise pynvml.NVMLError(number)

    monkeypatch.setattr(install_gpus(make_gpus(1)), "nvmlDeviceGetPciInfo", fail)
    (gpu,) = gpus.read_gpus()

    assert gpu.node is None
    assert is_fault == bool(gpu.fault)


def test_settings_of_gpus_with_nvlink(install_gpus):
    nvml = install_gpus(
        [
            *make_gpus(1, corrected_errors=2, power_limit_watts=500.0),
            FakeGpu(uuid="b", is_persistent=False),
        ]
    )
    first, second = gpus.read_settings(gpus.read_gpus())

    assert first == GpuSettings(
        index=0,
        power_limit_watts=500.0,
        is_persistent=True,
        is_ecc_enabled=True,
        num_corrected_errors=2,
        num_uncorrected_errors=0,
        pcie_generation=5,
        pcie_width=16,
        num_nvlinks=18,
        paths=("X", "NV18"),
    )
    assert (("NV18", "X"), False) == (second.paths, second.is_persistent)
    assert 0 == nvml.num_open


@pytest.mark.parametrize(
    ("chosen", "paths"),
    [
        ([0, 1, 2, 4], [("X", "PIX", "NODE", "SYS"), ("PIX", "X", "NODE", "SYS")]),
        ([4, 0], [("X", "SYS"), ("SYS", "X")]),
    ],
)
def test_paths_over_pcie_are_to_the_gpus_of_the_trial(install_gpus, chosen, paths):
    install_gpus(make_gpus(8, num_nvlinks=0))
    visible = gpus.read_gpus()
    found = gpus.read_settings([visible[index] for index in chosen])

    assert chosen == [of.index for of in found]
    assert paths == [of.paths for of in found[:2]]
    assert {0, None} >= {of.num_nvlinks for of in found}


WHEEL = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
"""Of TensorFlow 2.21, as ``tf.sysconfig.get_build_info`` names them."""


@pytest.mark.parametrize(
    ("capability", "built_for", "code"),
    [
        ((5, 2), WHEEL, "none"),
        ((6, 1), WHEEL, "native"),
        ((8, 0), WHEEL, "native"),  # A100
        ((9, 0), WHEEL, "compiled"),  # H100
        # The letter says that it uses what only that chip has.
        ((9, 0), ("sm_90a",), "native"),
        ((9, 1), ("sm_90a", "compute_90a", "gfx90"), "none"),
    ],
)
def test_code_is_native_compiled_or_missing(capability, built_for, code):
    assert code == gpus.code_for(capability, built_for)


STRANGER = 2**22 + 1
"""A process id that this system never gives."""


def _reading(ns=0, **fields):
    defaults = {
        "clock_mhz": 1980,
        "power_watts": 600.0,
        "temperature_celsius": 60,
        "reasons": 0,
        "energy_joules": None,
        "num_foreign": 0,
    }
    return GpuReading(ns=ns, **(defaults | fields))


def reasons_of(uses):
    """Why nothing counts that was measured on these GPUs."""
    return [use.discard_reason for use in uses if use.discard_reason]


def test_a_trial_is_watched_from_its_start_to_its_end(install_gpus):
    nvml = install_gpus(make_gpus(8))
    with GpuWatch(gpus.read_gpus()[2:4], period_sec=0.01) as watch:
        time.sleep(0.1)
    first, second = watch.uses()

    assert (2, 3) == (first.index, second.index)
    assert first.num_samples >= 3
    assert (1980, 120.0) == (first.clock_mhz, first.power_watts)
    assert (31, ()) == (first.temperature_celsius, first.slowed_by)
    # Each reading of the stand-in adds 5 J.
    assert 5.0 * (first.num_samples - 1) == first.energy_joules
    assert first.watched_sec >= 0.1
    assert 0 == first.num_foreign_processes
    assert [] == reasons_of(watch.uses())
    assert 0 == nvml.num_open


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
print(child.pid, flush=True)
child.wait()
"""


def test_a_process_of_others_is_seen_and_those_of_a_trial_are_not(install_gpus):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        machine = make_gpus(2)
        machine[0].users = [os.getpid(), child.pid, int(child.stdout.readline())]
        machine[1].users = [os.getpid(), os.getppid()]
        install_gpus(machine)
        with GpuWatch(gpus.read_gpus()) as watch:
            pass
        child.stdin.close()

    assert [0, 1] == [use.num_foreign_processes for use in watch.uses()]
    assert ["1 other process used GPU 1"] == reasons_of(watch.uses())


@pytest.mark.parametrize(
    ("users", "own", "expected"),
    [
        ((5,), (5,), 0),
        ((5, 9), (5,), 1),
        # Ids of another name space: one can be ours, the second cannot.
        ((STRANGER,), (5,), 0),
        ((STRANGER, STRANGER + 1), (5,), 1),
        # Two sweeps in one container: the harness has processes without a context.
        ((STRANGER, STRANGER + 1), (5, 6, 7), 1),
        # Ours are found by their ids, so an unknown one is of others.
        ((5, STRANGER), (5, 6), 1),
    ],
)
def test_ids_of_another_name_space_can_be_ours(monkeypatch, users, own, expected):
    monkeypatch.setattr("psutil.pid_exists", lambda pid: pid < STRANGER)
    processes = gpu_watch.OwnProcesses()
    processes._pids = {*own}

    assert expected == processes.count_foreign(users)


def test_readings_of_a_window_are_chosen_by_time():
    readings = [_reading(ns) for ns in (0, 100, 200, 300)]

    assert readings == gpu_watch.within(readings, None, None)
    assert readings[1:3] == gpu_watch.within(readings, 100, 250)
    assert readings[3:] == gpu_watch.within(readings, 260, 290)


def test_a_hot_gpu_is_discarded_and_one_at_its_power_limit_is_not():
    low = [_reading(), _reading(reasons=0x4, clock_mhz=1700)]
    capped = gpu_watch.summarize(4, low)
    high = [_reading(reasons=0x1), _reading(reasons=0x20 | 0x8)]
    hot = gpu_watch.summarize(5, high)

    assert (1840.0, 1700.0) == (capped.clock_mhz, capped.lowest_clock_mhz)
    assert ("power limit",) == capped.slowed_by
    assert [] == reasons_of([capped])
    expected = "the clock of GPU 5 was lowered by hardware slowdown and heat"
    assert [expected] == reasons_of([capped, hot])


def test_a_gpu_that_is_lost_discards_what_follows(install_gpus):
    machine = make_gpus(2)
    install_gpus(machine)
    with GpuWatch(gpus.read_gpus(), period_sec=0.01) as watch:
        time.sleep(0.05)
        before_ns = time.monotonic_ns()
        machine[1].is_lost = True
        time.sleep(0.05)
    first, second = watch.uses()

    assert () == first.faults
    assert second.num_samples
    said = "GPU 1 could not be read (GPU is lost): unknown who used it"
    assert (said,) == second.faults
    assert [said] == reasons_of(watch.uses())
    assert [] == reasons_of(watch.uses(before_ns - 10_000_000, before_ns))


def test_a_gpu_that_was_never_read_is_neither_quiet_nor_free(install_gpus):
    machine = make_gpus(1)
    install_gpus(machine)
    chosen = gpus.read_gpus()
    machine[0].is_lost = True
    said = "GPU 0 could not be read (GPU is lost): unknown who used it"
    with GpuWatch(chosen) as watch:
        pass
    (use,) = watch.uses()

    assert 0 == use.num_samples
    assert [said] == reasons_of([use])
    assert said == gpu_watch.wait_until_free(chosen)


def test_errors_of_the_memory_that_appear_discard_a_trial(install_gpus):
    machine = make_gpus(2, uncorrected_errors=3)
    install_gpus(machine)
    with GpuWatch(gpus.read_gpus(), period_sec=0.01) as watch:
        time.sleep(0.03)
        machine[1].uncorrected_errors += 2
    first, second = watch.uses()

    assert () == first.faults
    assert ("2 uncorrected ECC errors appeared on GPU 1",) == second.faults
    assert "faults" not in first.model_dump()
    assert GpuUse.model_validate(second.model_dump()) == second


NO_LIST = without("ComputeRunningProcesses")


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (FakeGpu(users=[1]), "1 other process used GPU 0"),
        # None of ours runs yet, so an id of another name space is of others too.
        (FakeGpu(users=[1, STRANGER]), "2 other processes used GPU 0"),
        (FakeGpu(users=[os.getpid()]), ""),
        (FakeGpu(users=[1], mig=[FakeMig(uuid="MIG-1")]), "1 other process used GPU 0"),
        (FakeGpu(unsupported=NO_LIST), ""),
    ],
)
def test_who_uses_a_gpu_before_a_trial_is_of_others(install_gpus, gpu, expected):
    install_gpus([gpu])

    assert expected == gpu_watch.wait_until_free(gpus.read_gpus())


def test_gpus_that_a_trial_does_not_have_are_noted_where_it_uses_them(install_gpus):
    devices = make_gpus(4)
    devices[3].is_lost = True
    install_gpus(devices)

    def used(own, *looks):
        looked = gpu_watch.OtherGpus(own)
        for users in looks:
            for index, device in enumerate(devices):
                device.users = users.get(index, [])
            looked.look([41, 42])
        return looked.used

    for own in ("0", devices[0].uuid):
        assert set() == used(own, {0: [41], 1: [7]})
        assert {2} == used(own, {0: [41], 2: [7, 42]}, {0: [41]})
    assert set() == used(None, {2: [41]})
