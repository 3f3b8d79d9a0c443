"""Environment variables are recorded by name, and home folders never."""

import json

import pytest

from harness.placement import allocation
from harness.run import trial_tree
from results.records import masked, program
from results.records.models import Environment, Failure, StatusRecord
from results.store import record_file
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


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_variable_that_is_not_listed_is_never_recorded(name):
    """Also where its prefix is that of a listed one."""
    assert {} == program.recorded_variables({name: SECRETS[name]})
    assert {} == program.identity_variables({name: SECRETS[name]})


@pytest.mark.parametrize(
    "name",
    [
        "CUDNN_LOGLEVEL_DBG",
        "GLIBC_TUNABLES",
        "KMP_BLOCKTIME",
        "MALLOC_TRIM_THRESHOLD_",
        "NCCL_ALGO",
        "OMP_WAIT_POLICY",
        "ONEDNN_MAX_CPU_ISA",
        "TF_CPU_ALLOCATOR_USE_BFC",
        "TF_ENABLE_ONEDNN_OPTS",
        "TF_GPU_THREAD_MODE",
        "TF_XLA_FLAGS",
        "XLA_FLAGS",
    ],
)
def test_what_moves_performance_is_identity_and_is_recorded(name):
    """Two trials that differ in it are two cases."""
    environ = {name: "7"} | SECRETS

    assert {name: "7"} == program.identity_variables(environ)
    assert {name: "7"} == program.recorded_variables(environ)


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
    """Not by its folder; both separators of the loader are understood."""
    found = program.identity_variables({"LD_PRELOAD": value})

    assert {"LD_PRELOAD": expected} == found


def test_values_are_printable_lines_without_user_folders():
    """A value can have any bytes."""
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
        ("no path", "no path"),
    ],
)
def test_user_folders_are_shortened(text, expected, monkeypatch):
    """Wherever a path begins, but not within a longer one."""
    monkeypatch.setenv("HOME", "/home/eve")

    assert expected == masked.shortened(text)


def test_an_unusual_user_folder_of_this_user_is_shortened(monkeypatch):
    """As on clusters; the folder of all files is none."""
    monkeypatch.setenv("HOME", "/data/people/ada")
    assert "~/x /data/people/adam" == masked.shortened(
        "/data/people/ada/x /data/people/adam"
    )
    monkeypatch.setenv("HOME", "/")
    assert "/data/x" == masked.shortened("/data/x")


def _environment(tmp_path, synthetic):
    shape = synthetic.Shape(modes=(synthetic.WEAK,), replicas=(1,), repeats=2)
    store = synthetic.make_store(tmp_path / "study", shape)
    path = store.trial_dir(store.trial_ids()[0]) / "env.json"
    return path, json.loads(path.read_text())


def test_an_old_record_loses_what_may_not_be_recorded(tmp_path, synthetic):
    """It was written when variables were chosen by prefix; the rest stays."""
    path, fields = _environment(tmp_path, synthetic)
    fields["environment_variables"] = SECRETS | {
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "XLA_FLAGS": "--xla_dump_to=/home/ada/x",
    }
    path.write_text(json.dumps(fields))
    record = record_file.read(path, "env", Environment)

    assert record is not None
    assert {"TF_ENABLE_ONEDNN_OPTS": "0", "XLA_FLAGS": "--xla_dump_to=~/x"} == (
        record.environment_variables
    )
    assert () == Store.open(tmp_path / "study").read().problems


@pytest.mark.parametrize("variables_value", [7, [], {"OMP_NUM_THREADS": 7}])
def test_a_damaged_list_of_variables_is_still_reported(
    tmp_path, synthetic, variables_value
):
    """Cleaning changes only what it recognizes."""
    path, fields = _environment(tmp_path, synthetic)
    path.write_text(json.dumps(fields | {"environment_variables": variables_value}))

    assert 1 == len(Store.open(tmp_path / "study").read().problems)


def test_a_traceback_is_stored_without_user_folders(tmp_path):
    """Every text of a record but a plan and a spec, which name the data to read."""
    record = StatusRecord(
        trial_id="0" * 20,
        status="failed",
        started_at="a",
        ended_at="b",
        duration_sec=1,
        failure=Failure(
            phase="build",
            reason="no file /home/ada/x",
            traceback=f'Traceback:\n/home/ada/y\n  File "{HOME_OF_ROOT}/z.py"',
        ),
    )
    path = tmp_path / "status.json"
    record_file.write(path, record)
    found = record_file.read(path, "status", StatusRecord)

    assert "ada" not in path.read_text()
    assert found is not None
    assert found.failure is not None
    assert 'Traceback:\n~/y\n  File "~/z.py"' == found.failure.traceback


def test_the_command_of_a_plan_is_without_user_folders(tmp_path, synthetic):
    """It is shown only; the data that a plan names stays as it is."""
    store = synthetic.make_store(tmp_path / "study", synthetic.Shape(repeats=1))
    command = ("python", "-m", "harness", "--runs-dir=/home/ada/runs")
    plan = store.read_plan().model_copy(
        update={"command": command, "data_dir": "/home/ada/data"}
    )
    store.write_plan(plan)
    path = store.root / "plan.json"
    assert "~/runs" in path.read_text()
    old = json.loads(path.read_text()) | {"command": command}
    path.write_text(json.dumps(old))

    assert "--runs-dir=~/runs" == store.read_plan().command[-1]
    assert "/home/ada/data" == store.read_plan().data_dir
