"""Settings of kernel and firmware, and the commit of the source code."""

import re
import subprocess

import pytest

from harness.machine import containers, machine_state

CPU = "sys/devices/system/cpu"


def test_a_system_without_settings_has_none(fake_root, tmp_path):
    """As a container that hides ``/sys``; the C library is that of this process."""
    state = machine_state.read_machine_state(
        (0,), root=fake_root.path, source_root=tmp_path
    )
    read = state.model_dump(exclude={"glibc_version", "gpu_driver"})

    assert {None} == set(read.values())


def test_settings_are_read(fake_root):
    """Of the cores of the trial, where each has its own."""
    fake_root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] x")
    for cpu, governor in enumerate(("powersave", "performance", "schedutil")):
        fake_root.write(f"{CPU}/cpu{cpu}/cpufreq/scaling_governor", governor + "\n")
    fake_root.write(f"{CPU}/smt/active", "1\n")
    fake_root.write("sys/devices/system/node/node0/x", "")
    fake_root.write("sys/devices/system/node/node1/x", "")
    fake_root.write("sys/devices/system/node/online", "0-1\n")
    state = machine_state.read_machine_state((0, 1), root=fake_root.path)

    assert "madvise" == state.transparent_huge_pages
    assert "performance+powersave" == state.cpu_governor
    assert state.is_smt_active is True
    assert 2 == state.num_numa_nodes


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("intel_pstate/no_turbo", "0\n", True),
        ("intel_pstate/no_turbo", "1\n", False),
        ("cpufreq/boost", "0\n", False),
        ("cpufreq/boost", "1\n", True),
        ("cpufreq/boost", "what\n", None),
    ],
)
def test_boost_is_read_from_either_driver(fake_root, name, text, expected):
    """Intel's says the opposite of the others."""
    fake_root.write(f"{CPU}/{name}", text)

    assert expected is machine_state.read_boost(fake_root.path)


def test_the_c_library_is_named():
    """Its allocator moves performance."""
    version = machine_state.read_glibc_version()

    assert version is None or re.fullmatch(r"\d+\.\d+", version)


def _git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_commit_is_recorded_and_whether_code_differs(tmp_path):
    """A changed or new Python file counts, a note does not."""
    (tmp_path / "harness").mkdir()
    module = tmp_path / "harness/__init__.py"
    module.write_text("")
    assert (None, None) == machine_state.read_source_state(tmp_path)
    _git(tmp_path, "init", "-q")
    # A repository around an installed copy is not that of the code.
    assert (None, None) == machine_state.read_source_state(tmp_path)
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "x")
    commit = _git(tmp_path, "rev-parse", "HEAD").strip()

    assert (commit, False) == machine_state.read_source_state(tmp_path)
    (tmp_path / "note.txt").write_text("x")
    assert (commit, False) == machine_state.read_source_state(tmp_path)
    (tmp_path / "harness/new.py").write_text("x = 1")
    assert (commit, True) == machine_state.read_source_state(tmp_path)
    (tmp_path / "harness/new.py").unlink()
    module.write_text("x = 1")
    assert (commit, True) == machine_state.read_source_state(tmp_path)


def test_without_git_there_is_no_commit(tmp_path, monkeypatch):
    """The program may not be installed."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert (None, None) == machine_state.read_source_state(machine_state.SOURCE_ROOT)


IMAGE = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({".dockerenv": "", "run/secrets/kubernetes.io/x": ""}, {}, "kubernetes"),
        ({}, {"APPTAINER_CONTAINER": "/a.sif"}, "apptainer"),
        (
            {"run/.containerenv": f'engine="podman"\nimageid="{IMAGE}"\n'},
            {},
            f"podman sha256:{IMAGE}",
        ),
        ({"run/.containerenv": ""}, {}, "podman"),
        (
            {".dockerenv": ""},
            {"REPLICATOR_IMAGE": f"sha256:{IMAGE}"},
            f"docker sha256:{IMAGE}",
        ),
        ({}, {"REPLICATOR_IMAGE": IMAGE}, f"container sha256:{IMAGE}"),
    ],
)
def test_a_container_is_recorded_with_its_image(fake_root, files, environ, expected):
    """By what its engine leaves in it; the image where somebody says it."""
    for name, text in files.items():
        fake_root.write(name, text)

    assert expected == containers.read(fake_root.path, environ)


def test_an_image_without_an_id_is_refused(harness, monkeypatch):
    """A name can be moved to another image, and names a registry."""
    monkeypatch.setenv("REPLICATOR_IMAGE", "trainer:latest")
    code, out, err = harness("sweep", "--dry-run", "--workload=resnet50")

    assert (2, "") == (code, out)
    assert "REPLICATOR_IMAGE='trainer:latest' is no id of an image: 64" in err
