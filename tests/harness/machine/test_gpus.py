"""GPUs are read from the driver: which there are, their settings, what runs there."""

import pynvml
import pytest
from fake_nvml import FakeGpu, FakeMig, make_gpus, without

from harness.errors import PlanError
from harness.machine import gpus, machine_state
from results.records.machine_record import GpuSettings


def _visible(limit):
    variables = {} if limit is None else {"CUDA_VISIBLE_DEVICES": limit}
    return [gpu.cuda_id for gpu in gpus.visible_gpus(variables)]


@pytest.mark.parametrize("count", [0, 1, 8])
def test_every_gpu_of_the_driver_is_found(install_gpus, count):
    nvml = install_gpus(make_gpus(count))
    found = gpus.read_gpus()

    assert [str(i) for i in range(count)] == [gpu.cuda_id for gpu in found]
    assert 0 == nvml.num_open


def test_without_a_driver_there_is_no_gpu_and_no_limit(install_gpus):
    install_gpus([], driver=None)

    assert () == gpus.read_gpus()
    assert gpus.driver_version() is None
    assert gpus.cuda_version() is None
    assert [] == _visible("0,0")


def test_versions_of_the_driver_are_recorded(install_gpus):
    install_gpus(make_gpus(1), driver="570.86.15", cuda=12_080)

    assert "570.86.15" == machine_state.read_machine_state([0]).gpu_driver
    assert "12.8" == gpus.cuda_version()


@pytest.mark.parametrize(
    ("text", "expected"), [("1\n", 1), ("-1\n", None), ("x", None), (None, None)]
)
def test_the_kernel_says_which_node_a_gpu_is_attached_to(fake_root, text, expected):
    if text is not None:
        fake_root.write("sys/bus/pci/devices/0000:1b:00.0/numa_node", text)

    assert expected == gpus.read_node("00000000:1B:00.0", fake_root.path)


def test_instances_take_the_place_of_a_gpu_in_mig_mode(install_gpus):
    """CUDA numbers them differently, so all are named by their UUIDs."""
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
    ("0,GPU-00ab", r"names GPU 0 twice"),
    ("0,7,1", r"'7' is no GPU of this machine, so CUDA would hide it and all after"),
    ("GPU-ffff", r"'GPU-ffff' is no GPU of this .*; allowed are 0, 1 and the UUIDs"),
    ("GPU-", r"'GPU-' is the beginning of 2 ids \(GPU-00ab, GPU-01ab\)"),
    ("gpu-00ab", r"'gpu-00ab' is no GPU of this machine"),
    ("0,", r"'' is no GPU of this machine"),
    ("0x1", r"'0x1' is no GPU"),
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
    with pytest.raises(
        PlanError,
        match=r"GPU 1 cannot be read \(GPU is lost\), .*CUDA_VISIBLE_DEVICES=0,2",
    ):
        _visible(None)
    assert ["0", "2"] == _visible("0,2")
    assert 3 == len(gpus.listed_gpus({}))


@pytest.mark.parametrize(
    ("number", "is_fault"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, False),
        (pynvml.NVML_ERROR_NO_PERMISSION, False),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, False),
        (pynvml.NVML_ERROR_GPU_IS_LOST, True),
        (pynvml.NVML_ERROR_RESET_REQUIRED, True),
        (pynvml.NVML_ERROR_TIMEOUT, True),
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


def test_a_setting_that_a_gpu_does_not_support_is_none(install_gpus):
    unsupported = without(
        "EnforcedPowerLimit PersistenceMode EccMode TotalEccErrors "
        "MaxPcieLinkGeneration CurrPcieLinkWidth NvLinkState P2PStatus "
        "TopologyCommonAncestor"
    )
    machine = make_gpus(2, unsupported=unsupported)
    install_gpus(machine)
    visible = gpus.read_gpus()

    assert (
        GpuSettings(index=0, paths=("X", "?")),
        GpuSettings(index=1, paths=("?", "X")),
    ) == gpus.read_settings(visible)
    machine[1].is_lost = True
    assert () == gpus.read_settings(visible)


WHEEL = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
"""Of TensorFlow 2.21, as ``tf.sysconfig.get_build_info`` names them."""


@pytest.mark.parametrize(
    ("capability", "built_for", "code"),
    [
        ((5, 2), WHEEL, "none"),
        ((6, 1), WHEEL, "native"),
        ((8, 0), WHEEL, "native"),  # A100
        ((8, 9), WHEEL, "native"),  # L4
        ((9, 0), WHEEL, "compiled"),  # H100
        ((12, 0), WHEEL, "compiled"),
        # The letter says that it uses what only that chip has.
        ((9, 0), ("sm_90a",), "native"),
        ((9, 1), ("sm_90a", "compute_90a", "gfx90"), "none"),
    ],
)
def test_code_is_native_compiled_or_missing(capability, built_for, code):
    assert code == gpus.code_for(capability, built_for)


@pytest.mark.parametrize(
    ("value", "is_disabled"), [("1", True), ("0", False), ("", False)]
)
def test_the_cache_of_the_user_stays(value, is_disabled):
    home = {"HOME": "/home/me", "CUDA_CACHE_DISABLE": value}
    own = {"CUDA_CACHE_PATH": "/x", "CUDA_CACHE_MAXSIZE": "7"}

    assert is_disabled is gpus.is_cache_disabled(home)
    assert own == gpus.cache_variables({**home, **own})
    assert {
        "CUDA_CACHE_PATH": "/home/me/.nv/ComputeCache",
        "CUDA_CACHE_MAXSIZE": "4294967296",
    } == gpus.cache_variables(home)


def test_a_note_is_kept_with_earlier_ones(tmp_path):
    folder = tmp_path / "cache"
    h100, b200 = ("9.0, TensorFlow 2.21.0", "10.0, TensorFlow 2.21.0")
    assert () == gpus.noted_code(folder)
    gpus.note_code(folder, h100)
    gpus.note_code(folder, b200)

    assert {h100, b200} == set(gpus.noted_code(folder))
    assert gpus.cache_bytes(folder) > 50
    (note,) = folder.iterdir()
    for text in ("{", "{}", "7"):
        note.write_text(text)
        assert () == gpus.noted_code(folder)
