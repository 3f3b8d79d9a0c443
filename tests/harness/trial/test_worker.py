"""The process of a trial: its controls, its GPUs, its cluster, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from unittest import mock

import fork_server
import psutil
import pytest
import synthetic_trial
from command_lines import smoke_sweep
from study_files import lines_of

import workloads
from harness import HarnessError
from harness.trial import worker
from replicator.cluster import environment
from results import Control, Phase, Store, TrialStatus

ROOT = Path(__file__).resolve().parents[3]
NEVER = {"external_writes": "never"}


@pytest.mark.parametrize(
    ("backend", "control", "options"),
    [
        ("in_graph", Control.NONE, NEVER),
        ("multi_worker_in_graph", Control.NONE, NEVER),
        # Others have nothing to look for, and no such option.
        ("tf_mirrored", Control.NONE, {}),
        ("dtensor", Control.NONE, {"mesh": {"batch": 2, "model": 2}, "layout": {}}),
        ("in_graph", Control.NOSYNC, NEVER | {"without_communication": True}),
        # The number of replicas of the trial is that of its programs.
        ("single", Control.INDEPENDENT, {"num_replicas": 1}),
    ],
)
def test_a_replicator_is_made_as_the_trial_says(
    make_spec, monkeypatch, backend, control, options
):
    calls = []

    def create(name, **given):
        calls.append((name, given))
        return "a replicator"

    monkeypatch.setitem(sys.modules, "replicator", types.SimpleNamespace(create=create))
    wanted = NEVER | {"mesh": "1x2"}
    spec = make_spec(backend=backend, control=control, options=wanted)
    made = worker._create(spec)
    ((name, given),) = calls

    assert ("a replicator", backend) == (made, name)
    # False is the default.
    assert {"num_replicas": 2} | options == {
        key: value for key, value in given.items() if value is not False
    }


@pytest.mark.parametrize("control", [Control.NONE, Control.SYNTHETIC, Control.MATCH])
def test_a_program_leaves_out_what_the_trial_says(make_spec, monkeypatch, control):
    measured, build_control, writer = mock.Mock(), mock.Mock(), mock.Mock()
    info = mock.Mock(equivalence=mock.Mock(data="digits", options={"jit": "off"}))
    monkeypatch.setitem(sys.modules, "tensorflow", mock.MagicMock())
    monkeypatch.setitem(vars(workloads), "build_control", build_control)
    monkeypatch.setitem(sys.modules, "replicator._tf.dispatch", mock.Mock())
    monkeypatch.setattr(worker.catalog, "workload", lambda _: info)
    monkeypatch.setattr(worker, "_create", lambda _: "a replicator")
    monkeypatch.setattr(worker.measure, "measure_trial", measured)
    spec = make_spec(control=control, options={"jit": "compute"})
    worker.measure_spec(spec, mock.Mock(), writer)
    build, *_ = measured.call_args.args
    build()
    ((built, repl), given) = build_control.call_args
    record = given.pop("record")

    is_match = control is Control.MATCH
    assert (info, "a replicator", control.value) == (built, repl, given["control"])
    assert {"jit": "off" if is_match else "compute"} == given["options"]
    assert ("digits" if is_match else spec.data) == given["data"]
    assert is_match == (record is not None)
    if is_match:
        record(group="model")
        writer.write.assert_called_once_with("change", group="model")


@pytest.mark.processes
def test_an_independent_program_knows_its_rank_and_no_cluster(tmp_path, make_spec):
    spec = make_spec(backend="single", control=Control.INDEPENDENT)
    env = synthetic_trial.environment(spec, "5f0c")
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    (tmp_path / "env.json").write_text(env.model_dump_json())
    # Where TensorFlow would be imported, it says in which environment.
    said = "import os; raise ImportError(f\"cluster: {os.environ.get('TF_CONFIG')}\")"
    (tmp_path / "tensorflow.py").write_text(said)
    addresses = {"worker": ["localhost:20001", "localhost:20002"]}
    config = {"cluster": addresses, "task": {"type": "worker", "index": 1}}
    done = subprocess.run(
        [sys.executable, *fork_server.WORKER[1:], str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT))),
            "TF_CONFIG": json.dumps(config),
        },
        check=False,
    )

    assert 1 == done.returncode
    (failure,) = lines_of(tmp_path / "rank_1.jsonl", "failure")
    assert "cluster: None" == failure["reason"]


VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("kind", "index", "num_each", "expected"),
    [
        ("worker", 0, 1, "4"),
        ("worker", 1, 1, "5"),
        ("worker", 2, 1, "4"),  # the first on another host
        ("chief", 0, 1, "-1"),
        ("ps", 0, 1, "-1"),
        ("worker", 0, 2, "4,5"),
        ("worker", 1, 2, "6,MIG-7"),
        ("worker", 2, 2, "4,5"),
    ],
)
def test_each_process_of_a_cluster_sees_its_own_gpus(
    monkeypatch, kind, index, num_each, expected
):
    monkeypatch.setenv(VISIBLE, "4,5,6,MIG-7")
    addresses = {"chief": ["a:1"], "worker": ["a:2", "a:3", "b:2"], "ps": ["a:4"]}
    config = {"cluster": addresses, "task": {"type": kind, "index": index}}
    cluster = environment.detect({"TF_CONFIG": json.dumps(config)}).config()
    worker._choose_gpus(cluster, num_each)
    assert expected == os.environ[VISIBLE]

    config = types.SimpleNamespace(list_physical_devices=lambda _kind: [])
    build = types.SimpleNamespace(get_build_info=dict)
    cuda = types.SimpleNamespace(is_built_with_cuda=lambda: True)
    blind = types.SimpleNamespace(config=config, sysconfig=build, test=cuda)
    serving = types.SimpleNamespace(server=types.SimpleNamespace(main=lambda _: None))
    placement = types.SimpleNamespace(num_intra_op_threads=1, num_inter_op_threads=1)
    monkeypatch.setitem(sys.modules, "tensorflow", blind)
    monkeypatch.setitem(sys.modules, "replicator", serving)
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        monkeypatch.setenv(name, "1")
    message = rf"sees 0 GPUs, but was given {num_each} \({VISIBLE}={expected}\)"
    if expected != "-1":
        with pytest.raises(HarnessError, match=message):
            worker._serve(placement)
        # Processes without any are not compared with what TensorFlow sees.
        monkeypatch.setenv(VISIBLE, "")
    assert 0 == worker._serve(placement)


SWEEP = smoke_sweep(
    "--backends=multi_worker --replicas=2 --mode=weak --repeats=1 --no-match "
    "--budget=none --order=sequential --study=s"
)


@pytest.fixture
def run_cluster(harness, overrides, tmp_path, monkeypatch):
    def run_it(behavior="", *options):
        monkeypatch.setenv("FAKE_BEHAVIOR", f"*:*:{behavior}" if behavior else "")
        counting = overrides | {"count_oom_kills": lambda: 7}
        _, _, err = harness(*SWEEP, *options, overrides=counting)
        (trial,) = Store.open(tmp_path / "runs" / "s").trials()
        assert trial.status is not None, err
        return trial

    return run_it


@pytest.mark.processes
def test_every_worker_is_a_rank_with_times_of_its_own(run_cluster):
    trial = run_cluster()

    assert TrialStatus.OK is trial.status.status
    assert [0, 1] == [rank.rank for rank in trial.result.ranks]
    assert 8 == trial.result.global_batch_size
    assert all(4 == len(rank.step_time_sec) for rank in trial.result.ranks)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("behavior", "status", "reason"),
    [
        ("rank1_fail", "failed", "the reducer is out of paper"),
        ("rank1_sigkill", "failed", "counted no out-of-memory kills: rank 1"),
        # Nobody died and nobody failed otherwise: what the rank says is all there is.
        ("lose", "failed", "worker 1 ended"),
    ],
)
def test_the_cause_is_recorded_and_not_its_consequence(
    run_cluster, behavior, status, reason
):
    trial = run_cluster(behavior)
    failure = trial.status.failure

    assert TrialStatus(status) is trial.status.status
    assert Phase.MEASURE is failure.phase
    assert reason in failure.reason
    assert (behavior == "lose") == ("WorkerLostError" == failure.exception_type)


@pytest.mark.processes
def test_a_stuck_rank_is_killed_with_all_others(run_cluster, tmp_path):
    trial = run_cluster("hang", "--timeout=2s")

    assert TrialStatus.TIMEOUT is trial.status.status
    # Other tests start workers meanwhile; these are identified by their store.
    assert not [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(tmp_path) in " ".join(process.info["cmdline"] or [])
    ]
