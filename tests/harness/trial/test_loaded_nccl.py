"""The version of NCCL is that of the library in memory."""

import subprocess

import pytest

from harness.trial import loaded_nccl


@pytest.mark.parametrize(
    ("code", "text"), [(22501, "2.25.1"), (22100, "2.21.0"), (2804, "2.8.4")]
)
def test_a_code_is_written_as_people_do(code, text):
    """Its digits have changed with 2.9."""
    assert text == loaded_nccl.version_text(code)


def test_the_library_in_memory_is_asked(tmp_path):
    """A library of that name, which the linker of this machine makes."""
    source, library = tmp_path / "nccl.c", tmp_path / "libnccl.so.2"
    source.write_text("int ncclGetVersion(int* v) { *v = 22304; return 0; }\n")
    made = subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=False
    )
    if made.returncode:
        pytest.skip("this machine has no C compiler")
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 12  /usr/lib/libc.so.6\n"
        f"7f02-7f03 r-xp 00000000 08:01 13                 {library}\n"
    )

    assert "2.23.4" == loaded_nccl.loaded_version(maps)


@pytest.mark.parametrize("line", ["", "7f00-7f01 r-xp 0 08:01 1  /gone/libnccl.so.2\n"])
def test_without_a_library_nothing_is_known(tmp_path, line):
    """Also of one that cannot be opened again, and where nothing can be read."""
    maps = tmp_path / "maps"
    assert loaded_nccl.loaded_version(maps) is None
    maps.write_text(line)
    assert loaded_nccl.loaded_version(maps) is None
