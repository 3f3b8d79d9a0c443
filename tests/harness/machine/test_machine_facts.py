"""The environment record: machine, kernel, container, code, variables of a trial."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fake_root import FakeRoot
from repositories import commit, git

from harness.machine import disturbance, environment, machine_state
from harness.run import trial_tree
from results.records.machine_record import MachineState
from results.records.models import Placement

ROOT = Path(__file__).resolve().parents[3]
PLACE = Placement(
    cpusets=((0, 1),),
    cores_per_replica=2,
    num_intra_op_threads=2,
    num_inter_op_threads=1,
    num_available_cores=2,
    is_oversubscribed=False,
    device_sharing="shared",
)


def test_the_record_has_versions_and_no_host_name():
    """Published records must not say whose machine it was."""
    kept = {"OMP_NUM_THREADS": "2", "TF_GPU_THREAD_MODE": "global"}
    others = {"HOSTNAME": "h", "TF_TOKEN_app": "s", "TF_CONFIG": "{}"}
    record = environment.read_environment(PLACE, kept | others)

    assert kept == record.environment_variables
    assert "tensorflow" in record.packages
    assert record.memory_bytes > 2**28
    host = socket.gethostname()
    # A short name may be a word of the record.
    assert len(host) < 6 or not re.search(
        rf"\b{re.escape(host)}\b", record.model_dump_json()
    )


def test_packages_are_read_again_only_after_an_installation(tmp_path, monkeypatch):
    """A sweep of many trials looks once, and still sees an upgrade between two."""
    folder = tmp_path / "made_up-1.0.dist-info"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(environment, "PACKAGES", ("made-up",))
    looked_for = []
    read_version = environment._version
    monkeypatch.setattr(
        environment,
        "_version",
        lambda name: looked_for.append(name) or read_version(name),
    )

    assert {} == environment.read_packages() == environment.read_packages()
    assert ["made-up"] == looked_for
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: made-up\nVersion: 1.0"
    )
    assert {"made-up": "1.0"} == environment.read_packages()
    folder.rename(tmp_path / "made_up-1.1.dist-info")
    (tmp_path / "made_up-1.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: made-up\nVersion: 1.1"
    )
    assert {"made-up": "1.1"} == environment.read_packages()


def test_the_fingerprint_is_of_the_machine_not_of_the_moment():
    """Load and placement of one trial do not change it; another quota does."""
    other_place = PLACE.model_copy(update={"cpusets": ((1,),)})
    limited = PLACE.model_copy(update={"cgroup_quota_cores": 1.5})
    first, second, third = (
        environment.read_environment(place, {}).fingerprint
        for place in (PLACE, other_place, limited)
    )

    assert first == second != third


def test_what_moves_performance_is_in_the_fingerprint():
    """Variables of the user, settings of the kernel; not the commit of the code."""

    def fingerprint(**fields):
        return environment.read_environment(PLACE, {}, **fields).fingerprint

    state = MachineState(transparent_huge_pages="never")
    assert state == environment.read_environment(PLACE, {}, state=state).machine_state
    plain = fingerprint(state=MachineState(cpu_governor="performance"))
    code = MachineState(
        cpu_governor="performance", git_commit="a" * 40, container="docker"
    )
    slow = MachineState(cpu_governor="powersave")

    assert plain == fingerprint(state=code, inherited={"TF_CONFIG": "{}"})
    assert plain != fingerprint(state=slow)
    assert plain != fingerprint(state=code, inherited={"MALLOC_ARENA_MAX": "1"})


def test_a_cpu_without_a_name_is_its_architecture(tmp_path):
    """As on many ARM machines."""
    assert environment.read_cpu_model(tmp_path)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor: 0\nmodel name\t: Z80 @ 4 MHz\n")

    assert environment.read_cpu_model(tmp_path) == "Z80 @ 4 MHz"


def test_variables_of_a_trial_are_explicit(make_spec, tmp_path):
    """Threads, devices and hash seed are set; what would leak in is dropped."""
    base = {
        "OMP_NUM_THREADS": "64",
        "TF_CONFIG": "{}",
        "KMP_AFFINITY": "compact",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTHONPATH": "elsewhere",
        "PATH": "bin",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    variables = trial_tree.trial_variables(
        make_spec(seed=9), PLACE, tmp_path, base=base
    )

    assert "2" == variables["OMP_NUM_THREADS"] == variables["OPENBLAS_NUM_THREADS"]
    assert "-1" == variables["CUDA_VISIBLE_DEVICES"]
    assert "9" == variables["PYTHONHASHSEED"]
    # Made absolute: the trial runs in a folder of its own.
    inherited = str(Path("elsewhere").absolute())
    assert inherited == variables["PYTHONPATH"].split(os.pathsep)[-1]
    assert variables.keys().isdisjoint({"TF_CONFIG", "KMP_AFFINITY"})
    # A deliberate choice of the user stays, and is in the environment record.
    assert "0" == variables["TF_ENABLE_ONEDNN_OPTS"]
    assert "bin" == variables["PATH"]


def test_a_gpu_trial_sees_its_gpus_only(make_spec, tmp_path):
    """More visible GPUs would change what TensorFlow does."""
    variables = trial_tree.trial_variables(
        make_spec(), PLACE, tmp_path, gpu_ids=("3", "5"), base={}
    )

    assert "3,5" == variables["CUDA_VISIBLE_DEVICES"]
    assert "PCI_BUS_ID" == variables["CUDA_DEVICE_ORDER"]


def test_the_canary_gives_the_cores_back():
    """It is pinned while it runs, and only then."""
    before = os.sched_getaffinity(0)
    seconds = disturbance.run_canary(min(before))

    assert before == os.sched_getaffinity(0)
    assert 0.001 < seconds < 60


@pytest.mark.parametrize(
    ("group", "name", "text", "expected"),
    [
        ("0::/a/b", "a/b/memory.events", "oom 4\noom_kill 3\n", 3),
        ("0::/a/b", "memory.events", "oom_kill 2\n", 2),
        ("4:memory:/a", "memory/a/memory.oom_control", "under_oom 0\noom_kill 1", 1),
        ("0::/a", "a/memory.events", "oom 4\n", None),
        ("4:memory:/a", "memory/a/memory.stat", "oom_kill 1", None),
    ],
)
def test_out_of_memory_kills_are_those_of_the_own_control_group(
    tmp_path, group, name, text, expected
):
    """Kills of others on the machine are none; without a counter nothing is claimed."""
    assert trial_tree.read_oom_kills(tmp_path) is None
    root = FakeRoot(tmp_path)
    root.write("proc/vmstat", "oom_kill 9\n")
    root.write("proc/self/cgroup", f"{group}\n")
    root.write(f"sys/fs/cgroup/{name}", text)

    assert expected == trial_tree.read_oom_kills(tmp_path)


def test_the_death_signal_can_be_asked_for():
    """In a child, since the request would hold for the test process too."""
    code = "from harness.trial import process_tree as d; d.request_death_signal()"
    command = [sys.executable, "-c", code]

    assert subprocess.run(command, cwd=ROOT, timeout=60, check=False).returncode == 0


CPU = "sys/devices/system/cpu"


def test_a_system_without_settings_has_none(fake_root, tmp_path):
    """As a container that hides ``/sys``; the C library is that of this process."""
    state = machine_state.read_machine_state(
        (0,), root=fake_root.path, source_root=tmp_path
    )
    read = state.model_dump(exclude={"glibc_version", "gpu_driver"})

    assert {None} == set(read.values())


def test_settings_are_read(fake_root):
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


def test_the_commit_is_recorded_and_whether_code_differs(tmp_path):
    (tmp_path / "harness").mkdir()
    module = tmp_path / "harness/__init__.py"
    module.write_text("")
    assert (None, None) == machine_state.read_source_state(tmp_path)
    git(tmp_path, "init", "-q")
    # A repository around an installed copy is not that of the code.
    assert (None, None) == machine_state.read_source_state(tmp_path)
    commit(tmp_path, "first")
    found = git(tmp_path, "rev-parse", "HEAD").strip()

    assert (found, False) == machine_state.read_source_state(tmp_path)
    (tmp_path / "note.txt").write_text("x")
    assert (found, False) == machine_state.read_source_state(tmp_path)
    (tmp_path / "harness/new.py").write_text("x = 1")
    assert (found, True) == machine_state.read_source_state(tmp_path)
    (tmp_path / "harness/new.py").unlink()
    module.write_text("x = 1")
    assert (found, True) == machine_state.read_source_state(tmp_path)


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
    for name, text in files.items():
        fake_root.write(name, text)

    assert expected == environment.read_container(fake_root.path, environ)


def test_an_image_without_an_id_is_refused(refuse, monkeypatch):
    """A name can be moved to another image, and names a registry."""
    monkeypatch.setenv("REPLICATOR_IMAGE", "trainer:latest")
    err = refuse("sweep", "--dry-run", "--workload=resnet50")

    assert "REPLICATOR_IMAGE='trainer:latest' is no id of an image: 64" in err
