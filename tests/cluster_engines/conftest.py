"""Fixtures of tests that need a scheduler: a real Slurm of two nodes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import driver
import pytest
import slurm_cluster

ROOT = Path(__file__).resolve().parents[2]
# With what makes the import of TensorFlow quick in processes of tests.
PATHS = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="session")
def slurm():
    with slurm_cluster.temporary() as cluster:
        yield cluster


@pytest.fixture
def shared(tmp_path, slurm):
    """Returns a folder that all nodes see; cancels what a test leaves in the queue."""
    yield tmp_path
    slurm.run("scancel", "--user=root", "--full")
    slurm.wait_for(
        lambda: not slurm.run("squeue", "--noheader").stdout.strip(), "empty queue", 30
    )


@pytest.fixture
def harness(slurm, shared):
    """Returns a function that runs the command line on the controller."""

    def run(*args, **variables):
        return slurm.run(
            sys.executable,
            driver.__file__,
            *args,
            cwd=shared,
            env={"PYTHONPATH": PATHS, **driver.variables(), **variables},
        )

    return run


@pytest.fixture
def in_job(slurm, shared):
    """A function that runs the command line in a job of two nodes, to its end."""

    def run(*args, nodes=2, timeout_sec=300.0, **variables):
        job = submit(slurm, shared, *args, nodes=nodes, **variables)
        slurm.wait_for(
            lambda: slurm.job_state(job) in ("COMPLETED", "FAILED", "CANCELLED"),
            f"end of job {job}",
            timeout_sec,
        )
        return (shared / f"job-{job}.log").read_text(), slurm.job_state(job)

    return run


@pytest.fixture
def start_job(slurm, shared):
    """Returns a function that submits the command line; it returns the job's id."""
    return lambda *args, **options: submit(slurm, shared, *args, **options)


def submit(slurm, folder, *args, nodes=2, options=(), **variables):
    """Submits the command line as a job of so many nodes; returns its id."""
    batch = folder / "job.sh"
    words = " ".join(f"'{word}'" for word in (sys.executable, driver.__file__, *args))
    batch.write_text(f"#!/bin/bash\nexec {words}\n", encoding="utf-8")
    done = slurm.run(
        "sbatch",
        "--parsable",
        f"--nodes={nodes}",
        "--exclusive",
        f"--output={folder}/job-%j.log",
        *options,
        batch,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": PATHS,
            **driver.variables(),
            **variables,
        },
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()
