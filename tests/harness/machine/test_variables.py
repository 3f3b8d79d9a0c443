"""Environment variables are recorded by name, and home folders never."""

import json

import pytest

from harness.machine import allocation
from harness.run import trial_tree
from results.records import program, texts
from results.store.study_store import Store

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
MOVES_PERFORMANCE = (
    *("CUDNN_LOGLEVEL_DBG", "GLIBC_TUNABLES", "KMP_BLOCKTIME", "NCCL_ALGO"),
    *("MALLOC_TRIM_THRESHOLD_", "OMP_WAIT_POLICY", "ONEDNN_MAX_CPU_ISA"),
    *("TF_CPU_ALLOCATOR_USE_BFC", "TF_ENABLE_ONEDNN_OPTS", "TF_GPU_THREAD_MODE"),
    *("TF_XLA_FLAGS", "XLA_FLAGS"),
)


def test_what_moves_performance_is_identity_and_nothing_else_is_recorded():
    """Not even where its prefix is that of a listed one."""
    expected = dict.fromkeys(MOVES_PERFORMANCE, "7")

    assert expected == program.identity_variables(expected | SECRETS)
    assert expected == program.recorded_variables(expected | SECRETS)


def test_what_the_harness_sets_or_removes_is_not_identity(
    make_spec, one_core, tmp_path
):
    """A user's value of it never reaches a trial, so it must not refuse a resume."""
    place = allocation.place(
        one_core, num_replicas=1, cores_per_replica=1, device="cpu"
    )
    set_by_us = trial_tree.trial_variables(make_spec(), place, tmp_path, base={})
    removed = set(trial_tree._DROPPED_VARIABLES)

    assert program.IDENTITY.isdisjoint(set_by_us.keys() | removed)
    assert program.IDENTITY.isdisjoint(program.ONLY_RECORDED)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/usr/lib/libtcmalloc.so.4", "libtcmalloc.so.4"),
        ("/home/ada/lib/a.so:/opt/b.so c.so", "a.so:b.so:c.so"),
        ("", ""),
    ],
)
def test_a_preloaded_library_is_recorded_by_its_file_name(value, expected):
    found = program.identity_variables({"LD_PRELOAD": value})

    assert {"LD_PRELOAD": expected} == found


def test_values_are_printable_lines_without_user_folders():
    found = program.recorded_variables(
        {"XLA_FLAGS": "--xla_dump_to=/home/ada/x\n\x1b[31m \udcff"}
    )

    assert {"XLA_FLAGS": "--xla_dump_to=~/x\\n\\x1b[31m \\udcff"} == found


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
def test_user_folders_are_shortened(text, expected, monkeypatch):
    """Wherever a path begins, but not within a longer one."""
    monkeypatch.setenv("HOME", "/data/people/eve")
    assert expected == texts.shortened(text)
    monkeypatch.setenv("HOME", "/")  # which is nobody's
    assert "/data/x" == texts.shortened("/data/x")


@pytest.fixture
def study(tmp_path, synthetic):
    failed = {("in_graph", synthetic.WEAK, 1, 1): synthetic.TrialStatus.FAILED}
    shape = synthetic.Shape(
        modes=(synthetic.WEAK,), replicas=(1,), repeats=2, statuses=failed
    )
    return synthetic.make_store(tmp_path / "study", shape)


def changed(path, **fields):
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | fields))


def test_an_old_record_loses_what_may_not_be_recorded(study):
    """It was written when variables were chosen by prefix; the rest stays."""
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
    """But for the data that a plan names, which has to be found."""
    command = ("python", "-m", "harness", "--runs-dir=/home/ada/runs")
    plan = study.read_plan().model_copy(
        update={"command": command, "data_dir": "/home/ada/data"}
    )
    study.write_plan(plan)
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
