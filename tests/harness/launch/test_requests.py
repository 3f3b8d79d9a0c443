"""Launchers are found by name; what is submitted, and what is refused before that."""

import re
import subprocess

import fake_slurm
import pytest
from command_words import overridden, smoke_sweep

from harness.cli import exit_codes
from harness.errors import LaunchError, PlanError
from harness.launch import catalog
from harness.launch import ray as ray_launcher
from harness.launch import slurm as slurm_lib
from harness.launch.launcher import HOSTS_VARIABLE
from harness.launch.ray import RayHost


def test_trials_of_several_hosts_do_not_run_on_one(make_spec):
    """Figures of both would be of the same case."""
    spec = make_spec(variables={HOSTS_VARIABLE: "2"})

    with pytest.raises(
        PlanError,
        match=r"--launcher local: the trials are planned for 2 hosts, but 1 .*"
        r"allocation of 2",
    ):
        catalog.start("local").check([spec])


SWEEP = smoke_sweep("--backends=multi_worker --replicas=2 --mode=weak --repeats=3")
ON_SLURM = (*SWEEP, "--launcher=slurm")
ON_RAY = (*SWEEP, "--launcher=ray")


@pytest.fixture
def slurm(tmp_path_factory, monkeypatch):
    """Puts programs into PATH that answer as Slurm's; returns what was submitted."""
    return fake_slurm.install(tmp_path_factory.mktemp("slurm"), monkeypatch)


@pytest.fixture
def set_hosts(monkeypatch):
    def install(count):
        found = tuple(
            RayHost(node_id=str(i), address=f"10.0.0.{i}", num_cores=2, num_gpus=0)
            for i in range(count)
        )
        monkeypatch.setattr(ray_launcher, "read_hosts", lambda: found)

    return install


def test_outside_of_an_allocation_a_job_is_submitted(harness, slurm, monkeypatch):
    argv = (*ON_SLURM, "--nodes=2", "--runs-dir=it's here")
    monkeypatch.setenv("SBATCH_PARTITION", "main,big")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1:00:00")
    monkeypatch.setattr("sys.argv", ["harness", *argv])
    code, out, err = harness(*argv)
    text = slurm.read_text()

    assert (0, "42\n") == (code, out)
    assert re.search(
        r"submitted job 42; follow it with 'squeue --jobs=42' and 'tail -F \S+-42"
        r"\.log'; its study is it's here/\S+; scancel 42 ends it, and the same",
        err,
    )
    for pattern in (
        r"-m harness sweep .*--launcher=slurm .*--study resnet50-smoke-",
        r'#SBATCH --nodes="2"',
        r'#SBATCH --signal="B:USR1@60"',  # it stops before the time limit
        r"#SBATCH --requeue",
        r"main,big 1:00:00$",  # what sbatch finds in its environment
    ):
        assert re.search(pattern, text)
    batch_file = text.rpartition("main,big")[0]
    assert (
        ""
        == subprocess.run(
            ["bash", "-n"], input=batch_file, capture_output=True, text=True, check=True
        ).stderr
    )


NOT_SUBMITTED = [
    ("", "--nodes=3", r"--nodes 3: partition 'main' has 2; use at most --nodes 2"),
    ("", "--order=interleaved", r"--order interleaved on 2 hosts: blocks are judged"),
    ("mains", "--nodes=9", r"PARTITION: unknown partition 'mains'; known are main, bi"),
    # Of several, the largest has to have the nodes.
    ("big,main", "--nodes=9", r"partition 'big' has 8; use at most --nodes 8, or se"),
]


@pytest.mark.parametrize(("partition", "option", "message"), NOT_SUBMITTED)
def test_nothing_is_submitted_that_cannot_run(
    refuse, slurm, monkeypatch, partition, option, message
):
    if partition:
        monkeypatch.setenv("SBATCH_PARTITION", partition)
    words = overridden((*ON_SLURM, "--nodes=2"), option)

    assert re.search(message, refuse(*words))
    assert not slurm.exists()


def test_steps_get_the_variables_of_slurm_that_are_no_options_of_the_batch():
    given = {"SLURM_TIMELIMIT": "5", "SLURM_PARTITION": "big", "SLURM_NTASKS": "2"}
    kept = slurm_lib.without_options(given)

    assert {"SLURM_TIMELIMIT", "SLURM_PARTITION"} == set(kept)


def test_a_job_on_gpus_gets_those_of_the_largest_number_of_replicas(
    harness, refuse, slurm
):
    without = [word for word in ON_SLURM if not word.startswith("--replicas")]
    err = refuse(*without, "--device=gpu")
    assert "the GPUs of the job are unknown before it starts; give --replicas" in err
    assert not slurm.exists()

    sizes = ("--replicas=2,4", "--gpus-per-worker=2", "--nodes=2")
    code, _, err = harness(*without, "--device=gpu", *sizes)

    assert exit_codes.OK == code, err
    text = slurm.read_text(encoding="utf-8")
    assert '#SBATCH --ntasks-per-node="1"' in text
    assert '#SBATCH --gpus-per-node="2"' in text


REFUSED_OPTIONS = [
    ("slrum", (), r"unknown launcher 'slrum'; known are local, slurm"),
    ("local", ("--nodes=2",), r"--nodes 2 has no effect with --launcher local; ad"),
    ("local", ("--partition=x",), r"no longer an option: set SBATCH_PARTITION"),
    ("local", ("--workers=3",), r"--workers is no longer an option: leave it out"),
    ("ray", ("--nodes=2",), r"--nodes 2 has no effect with --launcher ray; add -"),
    ("slurm", ("--time-limit=9",), r"no longer an option: set SBATCH_TIMELIMIT"),
    (
        "ray",
        ("--order=interleaved",),
        r"--order interleaved on 2 hosts: blocks are judged by",
    ),
    ("jobset", (), r"--launcher jobset starts no trials, it only writes files: use"),
    ("jobset", ("--nodes=2",), r"--nodes 2 has no effect with --launcher jobset"),
]


@pytest.mark.parametrize(("launcher", "options", "message"), REFUSED_OPTIONS)
def test_options_of_a_launcher_are_checked(
    refuse, set_hosts, launcher, options, message
):
    set_hosts(2)
    err = refuse(*SWEEP, f"--launcher={launcher}", *options)

    assert re.search(message, err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (ON_SLURM, "'sbatch' is not in PATH, so there is no Slurm here; run the comma"),
        (
            ("sweep", "--study", "s", "--launcher=slurm"),
            "this process is in no allocation (SLURM_JOB_ID is not set)",
        ),
    ],
)
@pytest.mark.usefixtures("finished")
def test_what_slurm_has_to_have_is_named(refuse, monkeypatch, words, message):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    assert message in refuse(*words)


def test_a_step_that_slurm_takes_for_running_does_not_hold_up_the_sweep(
    tmp_path, monkeypatch
):
    """It is cancelled once; then what is left of the trial is ended on every node."""
    ran = []

    def run(command):
        ran.append(tuple(command))
        return f"42.0 other\n42.1 {tmp_path.name}\n" if "squeue" in command else ""

    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setattr(slurm_lib, "run", run)
    monkeypatch.setattr(slurm_lib, "_END_BY_ITSELF_SEC", 0.1)
    slurm_lib.SlurmLauncher(2).end(tmp_path)
    cancelled, ended = [command for command in ran if command[0] != "squeue"]

    assert ("scancel", "42.1") == cancelled
    assert {"srun", "--nodes=2", "harness.trial.process_tree"} <= set(ended)
    assert str(tmp_path) == ended[-1]


def test_without_a_cluster_of_ray_the_message_says_what_to_start(
    harness, monkeypatch, written
):
    def refuse():
        raise LaunchError("--launcher ray: no response; start one with 'ray start'")

    monkeypatch.setattr(ray_launcher, "read_hosts", refuse)
    code, out, err = harness(*ON_RAY)

    assert (2, "") == (code, out)
    assert "start one with 'ray start'" in err
    assert [] == written()


def test_several_hosts_are_part_of_the_identity(harness, set_hosts):
    """Figures of one host and of two are never of the same case; one is as any."""
    options = ("--order=sequential", "--dry-run", "--json")
    set_hosts(2)
    _, there, _ = harness(*ON_RAY, *options)
    set_hosts(1)
    _, here, _ = harness(*SWEEP, *options)

    assert '"REPLICATOR_HARNESS_HOSTS": "2"' in there
    assert "REPLICATOR_HARNESS_HOSTS" not in here
    assert "local" == catalog.start("ray").name
