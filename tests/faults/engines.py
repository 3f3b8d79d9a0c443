"""Starts a sweep of two-worker trials by each launcher, on an engine made for it."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("local", "slurm", "ray")


@contextlib.contextmanager
def started(name, sweep, log, temporary):
    """Runs the engine and the sweep on it while the ``with`` block runs."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    start = {"local": _local, "slurm": _slurm, "ray": _ray}[name]
    with start(sweep, log, variables) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def _command(sweep):
    return [sys.executable, "-m", "harness", *sweep]


@contextlib.contextmanager
def _local(sweep, log, variables):
    with log.open("wb") as out:
        yield subprocess.Popen(
            _command(sweep), stdout=out, stderr=subprocess.STDOUT, env=variables
        )


@contextlib.contextmanager
def _ray(sweep, log, variables):
    # Whatever token this user has; Ray reads the variable when it is imported.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False},
    )
    cluster.add_node(num_cpus=1, include_dashboard=False)
    try:
        with log.open("wb") as out:
            yield subprocess.Popen(
                [*_command(sweep), "--launcher=ray"],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={
                    **variables,
                    "RAY_ADDRESS": cluster.address,
                    "RAY_AUTH_MODE": "disabled",
                },
            )
    finally:
        cluster.shutdown()


@contextlib.contextmanager
def _slurm(sweep, log, variables):
    sys.path.insert(0, str(ROOT / "tests" / "support" / "machines"))
    import slurm_cluster

    if reason := slurm_cluster.missing():
        sys.exit(f"a cluster of Slurm {reason}")
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        slurm_cluster.running(Path(folder)) as cluster,
    ):
        yield subprocess.Popen(
            cluster.job([*_command(sweep), "--launcher=slurm"], log=log, cwd=ROOT),
            stdout=subprocess.DEVNULL,
            env=variables,
        )
