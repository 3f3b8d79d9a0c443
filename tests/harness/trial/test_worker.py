"""The worker makes what a control leaves out, and compares the GPUs it was given."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import psutil
import pytest
import synthetic_trial

from harness.machine.environment import read_environment
from harness.run import trial_tree
from harness.run.trial_runner import run_trial
from harness.trial import gpu_probe, measure, worker
from harness.trial.gpu_probe import MissingGpuError, TensorFlowGpus
from harness.trial.rank_file import cause_of, read_rank
from replicator.cluster.configuration import ClusterConfig
from results.records.models import Control, Phase, Placement, TrialStatus
from workloads.program import ReusingReplicator


@pytest.fixture
def created(monkeypatch):
    calls = []

    def create(name, **options):
        calls.append((name, options))
        return "a replicator"

    module = types.SimpleNamespace(create=create)
    monkeypatch.setitem(sys.modules, "replicator", module)
    return calls


@pytest.mark.parametrize(
    ("control", "is_without_communication"),
    [(Control.NONE, False), (Control.TWIN, False), (Control.NOSYNC, True)],
)
def test_only_nosync_is_without_communication(
    created, make_spec, control, is_without_communication
):
    """A twin is the case itself."""
    assert "a replicator" == worker._create(make_spec(control=control))
    options = {
        "num_replicas": 2,
        "without_communication": is_without_communication,
    }
    assert [("in_graph", options)] == created


@pytest.mark.parametrize(
    ("backend", "control", "takes"),
    [
        ("in_graph", Control.NONE, True),
        ("multi_worker", Control.NONE, True),
        ("multi_worker_in_graph", Control.NONE, True),
        ("single", Control.SOLO, False),
        ("tf_mirrored", Control.NONE, False),
    ],
)
def test_the_policy_for_writes_reaches_backends_that_look_for_them(
    created, make_spec, backend, control, takes
):
    """Others have nothing to look for, and no such option."""
    options = {"external_writes": "never"}
    worker._create(make_spec(backend=backend, control=control, options=options))

    ((_, given),) = created
    assert takes == ("external_writes" in given)
    assert "never" == given.get("external_writes", "never")


def test_synthetic_repeats_its_first_batch(created, make_spec):
    """All else is that of the case."""
    made = worker._create(make_spec(control=Control.SYNTHETIC))

    assert isinstance(made, ReusingReplicator)
    assert "a replicator" == made.original
    assert 2 == created[0][1]["num_replicas"]


def test_a_program_of_solo_has_one_replica(created, make_spec):
    """The number of replicas of the trial is that of its programs."""
    worker._create(make_spec(backend="single", control=Control.SOLO))

    assert [("single", {"num_replicas": 1})] == created


def test_a_program_of_solo_knows_its_rank_and_no_cluster(
    tmp_path, make_spec, monkeypatch
):
    """It is started like a member of a cluster, and would wait for the others."""
    spec = make_spec(backend="single", control=Control.SOLO)
    env = synthetic_trial.environment(spec, "5f0c")
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    (tmp_path / "env.json").write_text(env.model_dump_json())
    task = {"type": "worker", "index": 1}
    addresses = {"worker": ["localhost:20001", "localhost:20002"]}
    config = json.dumps({"cluster": addresses, "task": task})
    monkeypatch.setenv("TF_CONFIG", config)
    seen = []
    monkeypatch.setattr(
        worker,
        "measure_spec",
        lambda *_, **__: seen.append("TF_CONFIG" in os.environ),
    )
    monkeypatch.setattr(worker.process_tree, "beat", lambda _write: None)

    assert 0 == worker.main([str(tmp_path)])
    assert [False] == seen
    assert (tmp_path / "rank_1.jsonl").exists()


MOST_CPU_SEC = 15.0
"""Of the process, until it fails: most of it is the import of TensorFlow."""


def _cpu_sec():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.fixture
def trial_dir(tmp_path, make_spec):
    place = Placement(
        cpusets=((min(os.sched_getaffinity(0)),),),
        cores_per_replica=1,
        num_intra_op_threads=1,
        num_inter_op_threads=1,
        num_available_cores=1,
        is_oversubscribed=True,
        device_sharing="exclusive",
    )
    spec = make_spec(device="gpu")
    env = read_environment(place, {}, gpus=("H100", "H100"))
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    (tmp_path / "env.json").write_text(env.model_dump_json())
    return tmp_path


@pytest.mark.processes
def test_a_trial_without_its_gpus_fails_before_it_builds(trial_dir):
    """This machine's TensorFlow sees none: the worker says so, within 15 s."""
    before = _cpu_sec()
    with subprocess.Popen(
        [sys.executable, "-m", "harness.trial.worker", str(trial_dir)],
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "0,1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.PIPE,  # the worker lives as long as it is open
    ) as worker:
        code = worker.wait()
    log = read_rank(trial_dir, 0)

    assert 1 == code
    assert _cpu_sec() - before < MOST_CPU_SEC
    assert log.failure is not None
    assert "MissingGpuError" == log.failure["exception_type"]
    assert Phase.LAUNCH.value == log.failure["phase"]
    assert re.fullmatch(
        r"TensorFlow sees 0 GPUs, but was given 2 \(CUDA_VISIBLE_DEVICES=0,1\): .*;"
        r" install .* with make setup-gpu \(it installs requirements-gpu\.lock\), or"
        r" use --device cpu",
        log.failure["reason"],
    )
    assert {} == log.last("facts")  # nothing was built


@pytest.mark.processes
def test_a_process_of_its_own_says_what_tensorflow_sees():
    seen = gpu_probe.probe(["0", "1"])

    assert 0 == seen.num_gpus
    with pytest.raises(MissingGpuError, match=r"sees 0 GPUs, but was given 2"):
        gpu_probe.check(seen, ["0", "1"])


def test_a_tensorflow_that_cannot_be_imported_is_one_line(monkeypatch, tmp_path):
    """The last line that it wrote says why."""
    (tmp_path / "tensorflow.py").write_text("raise ImportError('no libcudart\\n.so')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MissingGpuError) as caught:
        gpu_probe.probe(["0"])

    assert re.fullmatch(
        r"TensorFlow does not say which GPUs it sees: .*; install it with make"
        r" setup-gpu .*",
        str(caught.value),
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, ()), ("", ()), ("-1", ()), ("3", ("3",)), ("MIG-1,2", ("MIG-1", "2"))],
)
def test_a_process_that_only_serves_was_given_none(value, expected):
    """Coordinators and parameter servers compute nothing."""
    variables = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}

    assert expected == gpu_probe.given_ids(variables)


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        (("worker", 0), "4"),
        (("worker", 1), "MIG-7"),
        (("worker", 2), "4"),  # the first on another host
        (("chief", 0), "-1"),
        (("ps", 0), "-1"),
    ],
)
def test_each_process_of_a_cluster_sees_its_own_gpu(monkeypatch, member, expected):
    """Those that coordinate or store see none, and are not compared."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,MIG-7")
    addresses = {
        "chief": ("a:1",),
        "worker": ("a:2", "a:3", "b:2"),
        "ps": ("a:4",),
    }
    kind, index = member
    worker._choose_gpus(ClusterConfig(addresses=addresses, kind=kind, index=index), 1)

    assert expected == os.environ["CUDA_VISIBLE_DEVICES"]
    assert (expected != "-1") == bool(gpu_probe.given_ids())


@pytest.mark.parametrize(
    ("index", "expected"), [(0, "4,5"), (1, "6,MIG-7"), (2, "4,5")]
)
def test_a_worker_of_several_replicas_sees_a_gpu_for_each(monkeypatch, index, expected):
    """Those of a host in the order of its workers; the third is the first elsewhere."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,MIG-7")
    config = ClusterConfig(
        addresses={"worker": ("a:1", "a:2", "b:1")}, kind="worker", index=index
    )
    worker._choose_gpus(config, 2)

    assert expected == os.environ["CUDA_VISIBLE_DEVICES"]


def test_what_it_prints_is_what_it_reads(capsys, monkeypatch):
    seen = TensorFlowGpus(
        num_gpus=2,
        is_built_with_cuda=True,
        cuda_version="12.5",
        cudnn_version="9",
        architectures=("sm_80", "compute_90"),
    )
    monkeypatch.setattr(gpu_probe, "read_here", lambda: seen)

    assert 0 == gpu_probe.main()
    assert seen == TensorFlowGpus(**json.loads(capsys.readouterr().out))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ({2: 1, 0: 1}, 2),  # the first that ended
        ({1: 3, 0: 1}, 1),  # whatever its number
        ({0: 1, 1: -9}, 1),  # a kill explains the others
        ({0: 1, 2: -11, 1: -9}, 2),  # the first of them
    ],
)
def test_the_cause_is_the_first_kill_or_the_first_end(bad, cause):
    """The others fail because they lost it; exit codes do not say which one it was."""
    assert cause == cause_of(bad)


@pytest.fixture
def run_cluster(store, settings, make_spec):
    """Returns a function that runs a trial of two workers; it returns its record."""

    def run_it():
        trial = synthetic_trial.planned(make_spec(backend="multi_worker"))
        run_trial(store, trial, settings)
        return store.read_trial(trial.trial_id)

    return run_it


@pytest.mark.processes
def test_every_worker_is_a_rank_with_times_of_its_own(run_cluster):
    trial = run_cluster()

    assert TrialStatus.OK is trial.status.status
    assert [0, 1] == [rank.rank for rank in trial.result.ranks]
    assert 8 == trial.result.global_batch_size
    assert all(4 == len(rank.step_time_sec) for rank in trial.result.ranks)


CAUSES = [
    ("rank1_fail", "failed", "the reducer is out of paper"),
    ("rank1_sigkill", "failed", "the kernel counted no out-of-memory kills: rank 1"),
    pytest.param(
        *("rank1_segv", "failed", "signal SIGSEGV: rank 1 was in phase measure"),
        marks=pytest.mark.full,
    ),
    pytest.param(
        *("rank1_oom", "out_of_memory", "OOM when allocating"),
        marks=pytest.mark.full,
    ),
]


@pytest.mark.processes
@pytest.mark.parametrize(("behavior", "status", "reason"), CAUSES)
def test_the_cause_is_recorded_and_not_its_consequence(
    run_cluster, monkeypatch, behavior, status, reason
):
    """Rank 0 loses rank 1 and says so; what happened to rank 1 is the failure."""
    monkeypatch.setattr(trial_tree, "read_oom_kills", lambda: 7)
    monkeypatch.setenv("FAKE_BEHAVIOR", f"*:*:{behavior}")

    trial = run_cluster()

    assert TrialStatus(status) is trial.status.status
    assert Phase.MEASURE is trial.status.failure.phase
    assert reason in trial.status.failure.reason


@pytest.mark.processes
def test_a_lost_worker_without_a_cause_is_recorded_as_that(run_cluster, monkeypatch):
    """Nobody died and nobody failed otherwise: what the rank says is all there is."""
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:lose")

    failure = run_cluster().status.failure

    assert "WorkerLostError" == failure.exception_type
    assert "worker 1 ended" in failure.reason


@pytest.mark.processes
def test_a_stuck_rank_is_killed_with_all_others(
    store, settings, make_spec, monkeypatch
):
    """The timeout of a trial holds for its cluster; no process is left."""
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:hang")
    trial = synthetic_trial.planned(make_spec(backend="multi_worker"))

    status = run_trial(store, trial, dataclasses.replace(settings, timeout_sec=3))

    assert TrialStatus.TIMEOUT is status.status
    # Other tests start workers meanwhile; these are identified by their store.
    left = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(store.root) in " ".join(process.info["cmdline"] or [])
    ]
    assert not left


LONG_SEC = 60.0
FOREVER = 1e9


@pytest.fixture(params=["descriptor", "no descriptor", "refused"])
def start(request, monkeypatch):
    def refuse(_pid):
        raise OSError("not supported")

    if request.param == "no descriptor":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    elif request.param == "refused":
        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    return lambda text: subprocess.Popen(["/bin/sh", "-c", text])


@pytest.mark.parametrize("timeout_sec", [LONG_SEC, FOREVER])
def test_the_exit_code_is_returned(start, timeout_sec):
    process = start("sleep 0.1; exit 3")

    assert 3 == measure.wait_for_turn(process, timeout_sec) == process.returncode
    assert 3 == measure.wait_for_turn(process, timeout_sec)


def test_a_signal_is_negative(start):
    """As of Popen."""
    process = start("kill -TERM $$")

    assert -signal.SIGTERM == measure.wait_for_turn(process, LONG_SEC)


def test_a_process_that_runs_on_is_a_timeout(start):
    process = start("exec sleep 60")
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        measure.wait_for_turn(process, 0.2)

    assert time.monotonic() - begin >= 0.2
    assert process.poll() is None
    process.kill()
    assert -signal.SIGKILL == measure.wait_for_turn(process, LONG_SEC)


def test_an_interrupt_ends_the_wait(start):
    """A signal handler that raises is not put off until the process ends."""
    process = start("exec sleep 60")

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            measure.wait_for_turn(process, LONG_SEC)
    finally:
        signal.signal(signal.SIGALRM, before)
        process.kill()
        process.wait()
