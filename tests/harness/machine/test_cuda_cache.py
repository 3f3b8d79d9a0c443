"""What of a build runs on a GPU, and where what is compiled is kept."""

import pytest

from harness.machine import cuda_cache

WHEEL = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
"""Of TensorFlow 2.21, as ``tf.sysconfig.get_build_info`` names them."""


@pytest.mark.parametrize(
    ("capability", "code"),
    [
        ((5, 2), "none"),
        ((6, 1), "native"),
        ((7, 5), "native"),
        ((8, 0), "native"),
        ((8, 6), "native"),
        ((8, 9), "native"),
        ((9, 0), "compiled"),
        ((10, 0), "compiled"),
        ((12, 0), "compiled"),
    ],
)
def test_code_is_native_compiled_or_missing(capability, code):
    """A100 and L4 have code of their own; H100, B200 and what follows do not."""
    assert code == cuda_cache.code_for(capability, WHEEL)


def test_code_of_one_chip_alone_runs_on_no_later_one():
    """The letter says that it uses what only that chip has."""
    assert "native" == cuda_cache.code_for((9, 0), ("sm_90a",))
    assert "none" == cuda_cache.code_for((9, 1), ("sm_90a", "compute_90a", "gfx90"))


def test_what_the_user_has_set_stays():
    """Otherwise the folder is that of CUDA, with the largest size."""
    assert {
        "CUDA_CACHE_PATH": "/home/me/.nv/ComputeCache",
        "CUDA_CACHE_MAXSIZE": "4294967296",
    } == cuda_cache.variables({"HOME": "/home/me"})
    own = {"CUDA_CACHE_PATH": "/x", "CUDA_CACHE_MAXSIZE": "7"}
    assert own == cuda_cache.variables({"HOME": "/home/me", **own})


def test_a_note_is_kept_with_earlier_ones(tmp_path):
    """Of each GPU, driver and TensorFlow; what is damaged says nothing."""
    folder = tmp_path / "cache"
    h100, b200 = (cuda_cache.key(of, "570.86.15", "2.21.0") for of in ((9, 0), (10, 0)))
    assert () == cuda_cache.noted(folder)
    cuda_cache.note(folder, h100)
    cuda_cache.note(folder, b200)

    assert {h100, b200} == set(cuda_cache.noted(folder))
    assert cuda_cache.num_bytes(folder) > 50
    (note,) = folder.iterdir()
    for text in ("{", "{}", "7"):
        note.write_text(text)
        assert () == cuda_cache.noted(folder)


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("0", False), ("", False)]
)
def test_a_disabled_cache_is_seen(value, expected):
    """CUDA takes 1 for it."""
    assert expected is cuda_cache.is_disabled({"CUDA_CACHE_DISABLE": value})
