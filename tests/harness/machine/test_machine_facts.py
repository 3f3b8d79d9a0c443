"""The record of the environment: machine, container, code, and no home folder."""

import json
import os
import re
import socket
from pathlib import Path

import fake_machine
import pytest
from command_lines import commit, git, smoke_sweep
from fake_machine import install_packages, make_gpus, with_cpus

from harness import ExitCode, read_machine_state
from results import Store, TrialStatus

ROOT = Path(__file__).resolve().parents[3]
ONE_TRIAL = smoke_sweep(
    "--backends=in_graph --mode=weak --repeats=1 --order=sequential --no-match "
    "--budget=none"
)


LOCK = (ROOT / "requirements-gpu.lock").read_text()
LIBRARIES = {*re.findall(r"^(nvidia-[\w-]+)==", LOCK, re.MULTILINE)} - {"nvidia-ml-py"}


@pytest.mark.usefixtures("finished", "forked_trials")
def test_the_record_has_versions_and_no_host_name(
    succeed, overrides, tmp_path, monkeypatch
):
    """With those of CUDA: trials with another cuDNN or NCCL are of another machine."""
    kept = {"OMP_WAIT_POLICY": "passive", "TF_GPU_THREAD_MODE": "global"}
    others = {"HOSTNAME": "h", "TF_TOKEN_app": "s", "TF_CONFIG": "{}"}
    for name, value in (kept | others).items():
        monkeypatch.setenv(name, value)
    libraries = dict.fromkeys(LIBRARIES, "9.9")
    install_packages(tmp_path / "site", monkeypatch, libraries)
    words = ("--replicas=1", "--backends=in_graph", "--mode=weak", "--repeats=1")
    own = ("--no-match", "--budget=none", "--order=sequential", "--study=t")
    succeed(*smoke_sweep(" ".join((*words, *own))), overrides=overrides)
    stores = (Store.open(tmp_path / "runs" / name).trials() for name in ("s", "t"))
    before, (made,) = map(list, stores)
    record = made.env
    usual = next(of.env for of in before if of.spec.seed == made.spec.seed)

    # Its only replica has all cores of the machine.
    names = {n for n in usual.environment_variables if n.endswith("_NUM_THREADS")}
    kept |= dict.fromkeys(names, str(made.spec.cores_per_replica))
    assert usual.environment_variables | kept == record.environment_variables
    assert len(libraries) > 8
    assert usual.packages | libraries == record.packages
    assert "tensorflow" in record.packages
    assert record.memory_bytes > 2**28
    host, text = socket.gethostname(), record.model_dump_json()
    # A short name may be a word of the record.
    assert len(host) < 6 or not re.search(rf"\b{re.escape(host)}\b", text)


SWEEP = smoke_sweep(
    "--backends=in_graph --replicas=1 --mode=weak --repeats=1 --order=sequential "
    "--no-match --budget=none"
)
IMAGE = "0123456789abcdef" * 4


def test_what_moves_performance_is_in_the_fingerprint(harness, tmp_path, monkeypatch):
    def record(study, cpus=(0, 1), **inherited):
        """The environment of a trial whose process ends at once."""
        ended = {"canary": lambda _core: 0.2, "worker_command": ("true",)}
        with monkeypatch.context() as patch:
            for name, value in inherited.items():
                patch.setenv(name, value)
            harness(*SWEEP, f"--study={study}", overrides=ended | with_cpus(cpus))
        (trial,) = Store.open(tmp_path / "runs" / study).trials()
        return trial.env

    plain = record("plain")
    moved = record("moved", (1, 0), REPLICATOR_IMAGE=IMAGE, TF_CONFIG="{}")

    def facts(name, **changes):
        changed = getattr(plain, name).model_copy(update=changes)
        return plain.model_copy(update={name: changed}).machine_facts

    state, same = "machine_state", plain.machine_facts
    assert plain.fingerprint == moved.fingerprint
    assert plain.fingerprint != record("other", MALLOC_ARENA_MAX="1").fingerprint
    assert plain.machine_state.container != moved.machine_state.container
    assert same == facts(state, git_commit="a" * 40) == facts("placement", cpusets=())
    assert same != facts("placement", cgroup_quota_cores=1.5)
    assert same != facts(state, cpu_governor="another")


def test_variables_of_a_trial_are_explicit(
    harness, gpu_overrides, install_gpus, tmp_path, monkeypatch
):
    # A deliberate choice of the user stays, and is in the environment record.
    kept = {"TF_ENABLE_ONEDNN_OPTS": "0", "PATH": os.environ["PATH"]}
    dropped = {"TF_CONFIG": "{}", "KMP_AFFINITY": "compact"}
    replaced = {"OMP_NUM_THREADS": "64", "PYTHONPATH": "elsewhere"}

    def started(study, *options, visible="0,1"):
        given = {**kept, **dropped, **replaced, "CUDA_VISIBLE_DEVICES": visible}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        changes = gpu_overrides | {"worker_command": fake_machine.SAYS_VARIABLES}
        harness(*ONE_TRIAL, f"--study={study}", *options, overrides=changes)
        (trial,) = Store.open(tmp_path / "runs" / study).trials()
        return trial, fake_machine.variables_of(tmp_path, trial.trial_id)

    trial, found = started("a", "--replicas=1")

    ours = {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONHASHSEED": str(trial.spec.seed)}
    num_threads = str(trial.env.placement.num_intra_op_threads)
    threads = dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"], num_threads)
    assert (kept | ours | threads).items() <= found.items()
    # Made absolute: the trial runs in a folder of its own.
    inherited = str(Path("elsewhere").absolute())
    assert inherited == found["PYTHONPATH"].split(os.pathsep)[-1]
    assert found.keys().isdisjoint(dropped)
    install_gpus(make_gpus(6))
    _, on_gpus = started("b", "--replicas=2", "--device=gpu", visible="3,5")
    assert "3,5" == on_gpus["CUDA_VISIBLE_DEVICES"]
    assert "PCI_BUS_ID" == on_gpus["CUDA_DEVICE_ORDER"]


@pytest.mark.parametrize(
    ("group", "name", "text", "expected"),
    [
        ("0::/a/b", "a/b/memory.events", "oom 4\noom_kill 3\n", 31 - 3),
        ("0::/a/b", "memory.events", "oom_kill 2\n", 21 - 2),
        (
            "4:memory:/a",
            "memory/a/memory.oom_control",
            "under_oom 0\noom_kill 1",
            11 - 1,
        ),
        ("0::/a", "a/memory.events", "oom 4\n", None),
        ("4:memory:/a", "memory/a/memory.stat", "oom_kill 1", None),
        ("", "memory.events", "oom_kill 2\n", None),
    ],
)
def test_out_of_memory_kills_are_those_of_the_own_control_group(
    fake_root, harness, tmp_path, monkeypatch, group, name, text, expected
):
    """Of a trial whose process ends by SIGKILL after its group and the kernel count."""
    counters = {"proc/vmstat": "oom_kill 8\n", f"sys/fs/cgroup/{name}": text}
    for file, counter in counters.items():
        fake_root.write(file, counter)
    if group:
        fake_root.write("proc/self/cgroup", f"{group}\n")
    fake_root.show(monkeypatch, "/proc/self/cgroup", "/sys/fs/cgroup")
    places = " ".join(str(fake_root.path / file) for file in counters)
    script = f"sed -i 's/kill [0-9]/&1/' {places}; kill -KILL $$"
    killed = {"worker_command": ("/bin/sh", "-c", script), "canary": lambda _core: 0.2}
    harness(*SWEEP, "--study=s", overrides=killed)
    (trial,) = Store.open(tmp_path / "runs" / "s").trials()

    said = "cause unknown: its control group does not count"
    if expected is not None:
        said = f"harness did not send; the kernel counted {expected}"
    assert f"{said} out-of-memory kills" in trial.status.failure.reason
    assert expected is None or TrialStatus.OUT_OF_MEMORY is trial.status.status


CPU = "sys/devices/system/cpu"


@pytest.mark.parametrize(
    ("name", "text", "is_enabled"),
    [
        ("intel_pstate/no_turbo", "0\n", True),
        ("cpufreq/boost", "1\n", True),
        ("cpufreq/boost", "what\n", None),
    ],
)
def test_settings_are_read(fake_root, name, text, is_enabled):
    fake_root.write(f"{CPU}/{name}", text)
    fake_root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] x")
    for cpu, governor in enumerate(("powersave", "performance", "schedutil")):
        fake_root.write(f"{CPU}/cpu{cpu}/cpufreq/scaling_governor", governor + "\n")
    fake_root.write(f"{CPU}/smt/active", "1\n")
    fake_root.write("sys/devices/system/node/node0/x", "")
    fake_root.write("sys/devices/system/node/node1/x", "")
    fake_root.write("sys/devices/system/node/online", "0-1\n")
    state = read_machine_state((0, 1), root=fake_root.path)

    assert is_enabled is state.is_boost_enabled
    assert "madvise" == state.transparent_huge_pages
    assert "performance+powersave" == state.cpu_governor
    assert state.is_smt_active is True
    assert 2 == state.num_numa_nodes


def test_the_commit_is_recorded_and_whether_code_differs(tmp_path, monkeypatch):
    def state():
        found = read_machine_state((), source_root=tmp_path)
        return found.git_commit, found.is_source_modified

    (tmp_path / "harness").mkdir()
    module, new = (tmp_path / "harness" / name for name in ("__init__.py", "new.py"))
    module.write_text("")
    assert (None, None) == state()
    git(tmp_path, "init", "-q")
    assert (None, None) == state()  # of a repository around an installed copy
    commit(tmp_path, "first")
    found = git(tmp_path, "rev-parse", "HEAD").strip()

    assert (found, False) == state()
    (tmp_path / "note.txt").write_text("x")
    assert (found, False) == state()
    new.write_text("x = 1")
    assert (found, True) == state()
    new.unlink()
    module.write_text("x = 1")
    assert (found, True) == state()
    monkeypatch.setenv("PATH", str(tmp_path))  # where there is no git
    assert (None, None) == state()


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
        (
            {".dockerenv": ""},
            {"REPLICATOR_IMAGE": f"sha256:{IMAGE}"},
            f"docker sha256:{IMAGE}",
        ),
    ],
)
def test_a_container_is_recorded_with_its_image(
    fake_root, monkeypatch, files, environ, expected
):
    for name, text in files.items():
        fake_root.write(name, text)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    state = read_machine_state((0,), root=fake_root.path)

    assert expected == state.container


@pytest.fixture
def study(tmp_path, synthetic):
    failed = {("in_graph", synthetic.WEAK, 1, 1): synthetic.TrialStatus.FAILED}
    shape = synthetic.Shape(
        modes=(synthetic.WEAK,), replicas=(1,), repeats=2, statuses=failed
    )
    return synthetic.make_store(tmp_path / "study", shape)


HOME_OF_ROOT = "/" + "root"
SECRETS = {
    "HOME": "/home/ada",
    "HOSTNAME": "h",
    "KERAS_HOME": "/home/ada/.keras",
    "MALLOC_SECRET": "s",
    "NCCL_COMM_ID": "10.0.0.1:1",
    "TF_CONFIG": '{"cluster": {"worker": ["host:1"]}}',
    "TF_TOKEN_app_terraform_io": "token",
    "TF_VAR_db_password": "password",
}
SET_BY_US = {"OMP_NUM_THREADS": "64", "KMP_AFFINITY": "compact"}
MOVES_PERFORMANCE = (
    *("CUDNN_LOGLEVEL_DBG", "GLIBC_TUNABLES", "KMP_BLOCKTIME", "NCCL_ALGO"),
    *("MALLOC_TRIM_THRESHOLD_", "OMP_WAIT_POLICY", "ONEDNN_MAX_CPU_ISA"),
    *("TF_CPU_ALLOCATOR_USE_BFC", "TF_ENABLE_ONEDNN_OPTS", "TF_GPU_THREAD_MODE"),
    *("TF_XLA_FLAGS", "XLA_FLAGS"),
)


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("/usr/lib/libtcmalloc.so.4", "libtcmalloc.so.4"),
        ("/home/ada/lib/a.so:/opt/b.so c.so", "a.so:b.so:c.so"),
    ],
)
def test_what_moves_performance_is_identity_and_nothing_else_is_recorded(
    harness, monkeypatch, library, name
):
    expected = dict.fromkeys(MOVES_PERFORMANCE, "7")
    given = expected | SECRETS | SET_BY_US | {"LD_PRELOAD": library}
    with monkeypatch.context() as patch:
        for variable, value in given.items():
            patch.setenv(variable, value)
        smoke = ("--workload=resnet50", "--preset=smoke", "--backends=in_graph")
        code, out, err = harness("sweep", "--dry-run", "--json", *smoke)

    assert ExitCode.OK == code, err
    for trial in json.loads(out)["trials"]:
        assert expected | {"LD_PRELOAD": name} == trial["spec"]["variables"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ada/runs", "~/runs"),
        ("/Users/ada", "~"),
        (f"at {HOME_OF_ROOT}/x.py", "at ~/x.py"),
        ('File "/home/ada/a.py", line 1', 'File "~/a.py", line 1'),
        ("a=/home/ada/x:/home/bob/y", "a=~/x:~/y"),
        (r'"reason\n/home/ada/x"', r'"reason\n~/x"'),
        ("/srv/home/ada/x", "/srv/home/ada/x"),
        ("the /root of all", "the /root of all"),
        ("/homes/ada", "/homes/ada"),
        # The own folder, as on clusters.
        ("/data/people/eve/x /data/people/evelyn", "~/x /data/people/evelyn"),
    ],
)
def test_user_folders_are_shortened(text, expected, monkeypatch, study):
    path = study.root / "plan.json"

    def stored(given):
        study.write_plan(study.read_plan().model_copy(update={"command": (given,)}))
        return json.loads(path.read_text())["command"][0]

    monkeypatch.setenv("HOME", "/data/people/eve")
    assert expected == stored(text)
    monkeypatch.setenv("HOME", "/")  # which is nobody's
    assert "/data/x" == stored("/data/x")


def changed(path, **fields):
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | fields))


def test_an_old_record_loses_what_may_not_be_recorded(study):
    (name, *_) = study.trial_ids()
    kept = {"TF_ENABLE_ONEDNN_OPTS": "0", "XLA_FLAGS": "--xla_dump_to=/home/ada/x"}
    path = study.trial_dir(name) / "env.json"
    changed(path, environment_variables=SECRETS | kept)

    assert kept | {"XLA_FLAGS": "--xla_dump_to=~/x"} == (
        study.read_trial(name).env.environment_variables
    )
    assert () == study.read().problems
    for damaged in (7, [], {"OMP_NUM_THREADS": 7}):  # is reported, and not cleaned
        changed(path, environment_variables=damaged)
        assert 1 == len(study.read().problems)


def test_what_is_stored_has_no_user_folders(study):
    command = ("python", "-m", "harness", "--runs-dir=/home/ada/runs")
    # The data that a plan names has to be found.
    fields = {"command": command, "data_dir": "/home/ada/data"}
    study.write_plan(study.read_plan().model_copy(update=fields))
    path = study.root / "plan.json"
    assert "~/runs" in path.read_text()
    changed(path, command=command)  # as an old one
    assert "--runs-dir=~/runs" == study.read_plan().command[-1]
    assert "/home/ada/data" == study.read_plan().data_dir

    (failed,) = (of for of in study.trials() if of.status.failure is not None)
    said = f'Traceback:\n/home/ada/y\n  File "{HOME_OF_ROOT}/z.py"'
    failure = failed.status.failure.model_copy(
        update={"reason": "no file /home/ada/x", "traceback": said}
    )
    status = failed.status.model_copy(update={"failure": failure})
    study.write_status(failed.trial_id, status)
    written = (study.trial_dir(failed.trial_id) / "status.json").read_text()

    assert "ada" not in written
    found = Store.open(study.root).read_trial(failed.trial_id).status.failure
    assert 'Traceback:\n~/y\n  File "~/z.py"' == found.traceback
