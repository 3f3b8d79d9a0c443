"""The environment record: machine, kernel, container, code, variables of a trial."""

import os
import re
import socket
from pathlib import Path

import pytest
from repositories import commit, git

from harness.machine import disturbance, environment, machine_state
from harness.run import trial_tree
from results.records.machine_record import MachineState
from results.records.models import Placement

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
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(environment, "PACKAGES", ("made-up",))
    read_version, looked_for = environment._version, []
    monkeypatch.setattr(
        environment,
        "_version",
        lambda name: looked_for.append(name) or read_version(name),
    )

    assert {} == environment.read_packages() == environment.read_packages()
    assert ["made-up"] == looked_for
    folder = tmp_path / "made_up.dist-info"
    folder.mkdir()
    for version in ("1.0", "1.1"):
        folder = folder.rename(tmp_path / f"made_up-{version}.dist-info")
        text = f"Metadata-Version: 2.1\nName: made-up\nVersion: {version}"
        (folder / "METADATA").write_text(text)
        assert {"made-up": version} == environment.read_packages()


def test_what_moves_performance_is_in_the_fingerprint():
    """Not load, placement or commit: it is of the machine, not of the moment."""

    def fingerprint(place=PLACE, **fields):
        return environment.read_environment(place, {}, **fields).fingerprint

    usual = {"cpu_governor": "performance"}
    moved = MachineState(**usual, git_commit="a" * 40, container="docker")
    plain = fingerprint(state=MachineState(**usual))
    other_cores = PLACE.model_copy(update={"cpusets": ((1,),)})
    limited = PLACE.model_copy(update={"cgroup_quota_cores": 1.5})

    assert plain == fingerprint(state=moved, inherited={"TF_CONFIG": "{}"})
    assert plain == fingerprint(other_cores, state=moved)
    assert plain != fingerprint(limited, state=moved)
    assert plain != fingerprint(state=MachineState(cpu_governor="powersave"))
    assert plain != fingerprint(state=moved, inherited={"MALLOC_ARENA_MAX": "1"})


def test_a_cpu_without_a_name_is_its_architecture(fake_root):
    assert environment.read_cpu_model(fake_root.path)
    fake_root.write("proc/cpuinfo", "processor: 0\nmodel name\t: Z80 @ 4 MHz\n")

    assert "Z80 @ 4 MHz" == environment.read_cpu_model(fake_root.path)


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

    # A deliberate choice of the user stays, and is in the environment record.
    assert {
        "OMP_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONHASHSEED": "9",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "PATH": "bin",
    }.items() <= variables.items()
    # Made absolute: the trial runs in a folder of its own.
    inherited = str(Path("elsewhere").absolute())
    assert inherited == variables["PYTHONPATH"].split(os.pathsep)[-1]
    assert variables.keys().isdisjoint({"TF_CONFIG", "KMP_AFFINITY"})
    on_gpus = trial_tree.trial_variables(
        make_spec(), PLACE, tmp_path, gpu_ids=("3", "5"), base={}
    )
    assert "3,5" == on_gpus["CUDA_VISIBLE_DEVICES"]
    assert "PCI_BUS_ID" == on_gpus["CUDA_DEVICE_ORDER"]


def test_the_canary_gives_the_cores_back():
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
    fake_root, group, name, text, expected
):
    """Kills of others on the machine are none; without a counter nothing is claimed."""
    assert machine_state.read_oom_kills(fake_root.path) is None
    fake_root.write("proc/vmstat", "oom_kill 9\n")
    fake_root.write("proc/self/cgroup", f"{group}\n")
    fake_root.write(f"sys/fs/cgroup/{name}", text)

    assert expected == machine_state.read_oom_kills(fake_root.path)


CPU = "sys/devices/system/cpu"


def test_a_system_without_settings_has_none(fake_root, tmp_path):
    """As a container that hides ``/sys``; the C library is that of this process."""
    state = machine_state.read_machine_state(
        (0,), root=fake_root.path, source_root=tmp_path
    )
    read = state.model_dump(exclude={"glibc_version", "gpu_driver"})

    assert {None} == set(read.values())
    assert re.fullmatch(r"\d+\.\d+", state.glibc_version or "2.0")


@pytest.mark.parametrize(
    ("name", "text", "is_enabled"),
    [
        ("intel_pstate/no_turbo", "0\n", True),
        ("intel_pstate/no_turbo", "1\n", False),
        ("cpufreq/boost", "0\n", False),
        ("cpufreq/boost", "1\n", True),
        ("cpufreq/boost", "what\n", None),
    ],
)
def test_settings_are_read(fake_root, name, text, is_enabled):
    """Intel's driver says the opposite of the others."""
    fake_root.write(f"{CPU}/{name}", text)
    fake_root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] x")
    for cpu, governor in enumerate(("powersave", "performance", "schedutil")):
        fake_root.write(f"{CPU}/cpu{cpu}/cpufreq/scaling_governor", governor + "\n")
    fake_root.write(f"{CPU}/smt/active", "1\n")
    fake_root.write("sys/devices/system/node/node0/x", "")
    fake_root.write("sys/devices/system/node/node1/x", "")
    fake_root.write("sys/devices/system/node/online", "0-1\n")
    state = machine_state.read_machine_state((0, 1), root=fake_root.path)

    assert is_enabled is state.is_boost_enabled
    assert "madvise" == state.transparent_huge_pages
    assert "performance+powersave" == state.cpu_governor
    assert state.is_smt_active is True
    assert 2 == state.num_numa_nodes


def test_the_commit_is_recorded_and_whether_code_differs(tmp_path, monkeypatch):
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
    monkeypatch.setenv("PATH", str(tmp_path))  # where there is no git
    assert (None, None) == machine_state.read_source_state(tmp_path)


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
