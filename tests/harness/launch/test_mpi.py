"""Programs under a real ``mpirun``: who they are, and how they are measured."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from study_files import processes_of

from harness import ExitCode
from replicator.cluster import local_cluster
from results import Evidence, Store

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        shutil.which("mpirun") is None,
        reason="needs mpirun of OpenMPI: apt-get install openmpi-bin",
    ),
]
FOLDER = Path(__file__).parent
OF_OTHERS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "TF_CONFIG")


@pytest.fixture
def run_gang(tmp_path, monkeypatch):
    for name in OF_OTHERS:
        monkeypatch.delenv(name, raising=False)
    as_root = ["--allow-run-as-root"] * (os.geteuid() == 0)

    def run(*words, has_master):
        """Returns what both processes say, in the order of their ranks."""
        master = {}
        if has_master:
            (port,) = local_cluster.free_ports(1)
            master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        names = [word for name in master for word in ("-x", name)]
        done = subprocess.run(
            [
                *("mpirun", *as_root, "--oversubscribe", "-np", "2", *names),
                *(sys.executable, str(FOLDER / "gang_member.py"), *words),
            ],
            env={**os.environ, **master},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said = [json.loads(line) for line in done.stdout.splitlines() if "{" in line]
        assert (0, 2) == (done.returncode, len(said)), done.stderr
        return sorted(said, key=lambda one: one["worker_id"])

    return run


@pytest.mark.parametrize("has_master", [True, False])
def test_mpirun_tells_every_process_who_it_is(run_gang, has_master):
    found = run_gang(has_master=has_master)

    assert [0, 1] == [one["worker_id"] for one in found]
    assert [(0, 2), (1, 2)] == [
        (one["local_worker_id"], one["num_workers_on_host"]) for one in found
    ]
    assert found[0]["addresses"] == found[1]["addresses"]
    assert 2 == len(set(found[0]["addresses"]))


@pytest.mark.full
def test_workers_of_mpirun_train_together(run_gang):
    found = run_gang("sum", has_master=True)

    assert [(0, 3.0), (1, 3.0)] == [(one["worker_id"], one["sum"]) for one in found]


EXAMPLE = FOLDER.resolve().parents[2] / "docs" / "examples" / "heat_mpi.py"
BINDINGS = FOLDER / "mpi_without_bindings"


@pytest.mark.usefixtures("forked_trials")
def test_the_documented_command_of_mpirun_is_measured(harness, tmp_path, monkeypatch):
    (command,) = re.findall(
        r"^ {4}python -m harness (.*mpirun.*)$",
        (EXAMPLE.parents[1] / "command.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    monkeypatch.setenv("OMPI_MCA_rmaps_base_oversubscribe", "1")
    # Ranks that wait would otherwise keep the cores from those that they wait for.
    monkeypatch.setenv("OMPI_MCA_mpi_yield_when_idle", "1")
    for name in ("", "_CONFIRM"):  # as containers run tests; mpirun refuses otherwise
        monkeypatch.setenv(f"OMPI_ALLOW_RUN_AS_ROOT{name}", "1")
    if importlib.util.find_spec("mpi4py") is None:
        monkeypatch.setenv("PYTHONPATH", str(BINDINGS))
    shutil.copy(EXAMPLE, tmp_path)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{python.parent}:{os.environ['PATH']}")
    command = command.replace(" 200000", " 2000")  # which takes seconds
    words = shlex.split(command.replace("weak,strong", "strong"))
    code, out, err = harness(*words, "--repeats=2", "--study=heat")

    assert ExitCode.OK == code, err
    assert "cells/s" in out
    store = Store(tmp_path / "runs" / "heat")
    trials = [*store.trials()]
    assert 4 == len(trials)
    said = [path.read_text() for path in (tmp_path / "runs").rglob("stdout.log")]
    (heat,) = {re.search(r"heat: (\S+);", text)[1] for text in said}
    assert 4 == len(said)
    assert float(heat) > 1
    for trial in trials:
        number, readings = trial.spec.num_replicas, trial.result.readings
        assert 10 == readings.num_readings
        # Lines of ranks that start late reach mpirun together, and are counted as such.
        if readings.evidence is Evidence.WINDOW:
            assert number + 1 <= readings.num_processes
            assert () == readings.remarks
        else:
            assert Evidence.ROWS is readings.evidence
            assert "came in one piece" in readings.remarks[0]
        (count,) = trial.result.window_metrics
        assert 32000 * (number - 1) == count.value
        folder = store.trial_dir(trial.trial_id).resolve()
        assert [] == processes_of(folder)
