"""``launch render`` on the command line, for JobSet, mpirun and Ray."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.cli import exit_codes


def render(harness, target, *options, command=("python", "train.py")):
    """Runs the verb."""
    return harness("launch", "render", "--target", target, *options, "--", *command)


@pytest.mark.parametrize(
    ("target", "options", "name"),
    [
        ("jobset", ["--image=example/replicator:1"], "study.jobset.yaml"),
        ("mpi", [], "study.mpi.sh"),
        ("ray", [], "study.ray.sh"),
    ],
)
def test_a_file_is_written_and_named(harness, tmp_path, target, options, name):
    """Nothing is submitted; the file is there and says what was requested."""
    code, out, err = render(
        harness, target, "--name=study", "--workers=2", "--gpus-per-worker=4", *options
    )

    assert (exit_codes.OK, "") == (code, err)
    assert name == Path(out.strip()).name
    assert "2 workers with 4 GPUs each" in (tmp_path / name).read_text()


def test_limits_of_a_pod_come_from_the_options(harness, tmp_path):
    """Memory too, which only containers have."""
    render(
        harness,
        "jobset",
        "--name=study",
        "--image=example/replicator:1",
        "--cores-per-worker=8",
        "--memory-per-worker=64Gi",
    )
    manifest = yaml.safe_load((tmp_path / "study.jobset.yaml").read_text())
    (job,) = manifest["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]

    assert {"cpu": 8, "memory": "64Gi"} == container["resources"]["limits"]


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("jobset", [], "--target jobset requires --image"),
        ("jobsets", [], "unknown target 'jobsets'"),
        ("jobset", ["--image=a b"], "is not the name of an image"),
        ("mpi", ["--workers=2", "--replicas=3"], "makes 2 replicas, not --replicas 3"),
        ("mpi", ["--partition=x"], "--target mpi has no --partition"),
        ("ray", ["--image=x"], "--target ray has no --image"),
        ("ray", ["--name=A"], "job name 'A' is not valid"),
    ],
)
def test_bad_input_exits_with_2(harness, written, target, options, message):
    """One line that says what to do, and no file."""
    code, out, err = render(harness, target, *options)

    assert (exit_codes.USAGE, "") == (code, out)
    assert message in err
    assert 1 == len(err.splitlines())
    assert [] == written()


def test_a_file_is_not_overwritten(harness):
    """It may have been edited."""
    first = render(harness, "mpi")
    code, _, err = render(harness, "mpi")

    assert exit_codes.OK == first[0]
    assert exit_codes.USAGE == code
    assert "exists and is not overwritten" in err
