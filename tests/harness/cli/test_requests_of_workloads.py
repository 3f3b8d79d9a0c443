"""What is wrong with a request of one workload is one line; nothing is written."""

import json

import pytest

from harness.cli import exit_codes
from harness.cli import main as cli
from workloads.d4pg import capacity

NO_OPENGL = (
    "option observations='pixels' needs OpenGL, which does not work here "
    "(MUJOCO_GL=egl: ImportError: Cannot initialize a headless EGL display.): install "
    "it (Debian: apt-get install libegl1 libgl1-mesa-dri), or use observations='state'"
)


@pytest.fixture
def refuse(capfd, tmp_path, monkeypatch):
    """Returns what a sweep that is refused says; fails if it does more."""
    monkeypatch.chdir(tmp_path)

    def run(*args, preset="smoke"):
        code = cli.main(
            [
                *("sweep", "--workload=d4pg", f"--preset={preset}", "--budget=none"),
                *("--repeats=1", "--runs-dir=runs"),
                *(
                    ()
                    if any("backends" in a for a in args)
                    else ("--backends=in_graph",)
                ),
                *(() if any("replicas" in arg for arg in args) else ("--replicas=1",)),
                *args,
            ]
        )
        out, err = capfd.readouterr()

        assert (exit_codes.USAGE, "") == (code, out)
        assert [] == list(tmp_path.iterdir())
        assert err.startswith("error: ")
        assert err.endswith("\n")
        return err[len("error: ") : -1]

    return run


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (
            ("--data=walker:fly",),
            (
                "data 'walker:fly' is unknown: 'walker' has the tasks 'walker:stand', "
                "'walker:walk', 'walker:run'; did you mean 'walker:walk' or "
                "'walker:run' or 'walker:stand'?"
            ),
        ),
        (
            ("--data=cartpol:swingup",),
            (
                "data 'cartpol:swingup' is unknown: the domains of the control suite "
                "are 'acrobot', 'ball_in_cup', 'cartpole', 'cheetah', 'dog', 'finger', "
                "'fish', 'hopper', 'humanoid', 'humanoid_CMU', 'lqr', 'manipulator', "
                "'pendulum', 'point_mass', 'quadruped', 'reacher', 'stacker', "
                "'swimmer', 'walker'; did you mean 'cartpole:swingup' or "
                "'cartpole:swingup_sparse' or 'acrobot:swingup'?"
            ),
        ),
        (
            ("--replicas=1,3", "--mode=strong"),
            (
                "strong scaling: global batch 32 is not divisible by 3 replicas "
                "(remainder 2); use --global-batch-size 30 or 33, or 2 or 4 replicas"
            ),
        ),
        (
            ("--option=num_atoms=1",),
            "option num_atoms=1 must be at least 2",
        ),
        (
            ("--option=lowest_return=10", "--option=highest_return=-10"),
            (
                "option lowest_return=10.0 must be below highest_return=-10.0, because "
                "returns lie between them: use for example -150 and 150"
            ),
        ),
        (
            ("--option=min_replay_size=30000",),
            (
                "option min_replay_size=30000 is more than the 19558 transitions that "
                "replay_capacity=20000 holds besides those being written: use at most "
                "that, or a replay_capacity of at least 30654"
            ),
        ),
        (
            (
                *("--backends=multi_worker", "--replicas=2"),
                *("--option=num_actors=1", "--option=environments_per_actor=2"),
                *("--option=replay_capacity=300", "--option=min_replay_size=220"),
            ),
            (
                "option min_replay_size=220 is more than the 212 transitions that "
                "replay_capacity=300 holds besides those being written on each of 2 "
                "workers: use at most that, or a replay_capacity of at least 308"
            ),
        ),
        (
            ("--per-replica-batch-size=10001", "--mode=weak", "--replicas=1,2"),
            (
                "option replay_capacity=20000 is less than the 20002 transitions of "
                "one learner step: use at least as many, or fewer per replica "
                "(--per-replica-batch-size)"
            ),
        ),
        (
            ("--option=samples_per_insert=0.000001",),
            (
                "option samples_per_insert=1e-06 requires 32,000,000 environment steps "
                "before each learner step of 32 transitions, but replay_capacity=20000 "
                "stores fewer: use at least 0.0016, or 0 for no limit"
            ),
        ),
    ],
)
def test_what_is_wrong_with_a_request_is_one_line(refuse, args, line):
    assert line == refuse(*args)


@pytest.mark.processes
def test_frames_without_opengl_name_the_packages(refuse, monkeypatch):
    """Also where the preset requires them; EGL finds no driver here."""
    monkeypatch.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", "/nonexistent")
    monkeypatch.delenv("MUJOCO_GL", raising=False)

    assert refuse("--option=observations=pixels") == NO_OPENGL
    assert refuse("--data=cartpole:swingup", preset="gpu") == NO_OPENGL


@pytest.mark.processes
def test_a_replay_that_does_not_fit_names_the_option(refuse, monkeypatch):
    """Observations of walker are 24 numbers, actions 6."""
    monkeypatch.setattr(capacity, "available_bytes", lambda: 10_000_000)

    assert refuse("--data=walker:walk", preset="laptop") == (
        "option replay_capacity=200000 needs 26 MB of memory for observations='state', "
        "but 10 MB are available here: use less, such as replay_capacity=69000, or "
        "another machine"
    )


@pytest.mark.processes
def test_an_installation_that_cannot_make_environments_is_named(
    refuse, tmp_path_factory, monkeypatch
):
    """As a MuJoCo that is too new for dm_control."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "sitecustomize.py").write_text(
        "import sys\nsys.modules['dm_control.suite'] = None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))

    assert refuse() == (
        "data 'cartpole:swingup' cannot be created here (import of dm_control.suite "
        "halted; None in sys.modules): check the installation of dm-control and mujoco"
    )


SMOKE = ("--workload=transformer", "--preset=smoke", "--repeats=2")
BYTES = 4 * 1_074_784  # of its parameters, in float32


def test_a_plan_says_what_each_level_keeps(harness, written):
    """All is 16 bytes per parameter; of two replicas, each keeps half of a level."""
    plan = ("sweep", "--dry-run", *SMOKE, "--replicas=1,2")
    code, out, _ = harness(*plan)
    _, as_json, _ = harness(*plan, "--json")

    assert exit_codes.OK == code
    tables = json.loads(as_json)["memory"]
    assert ["1", "2"] == list(tables)
    assert "\n".join(tables["2"]) in out
    rows = {row.split()[0]: row.replace(",", "").split()[1:] for row in tables["2"][2:]}
    assert [BYTES, BYTES, 2 * BYTES, 4 * BYTES] == [*map(int, rows["none"][:4])]
    for level, share in (("state", 3), ("gradients", 2.5), ("parameters", 2)):
        assert int(rows[level][3]) == pytest.approx(share * BYTES, rel=0.01)
    assert [] == written()


@pytest.mark.parametrize(
    "measured",
    [
        ("--workload=resnet50",),
        (
            "--command=true {replicas}",
            "--metric=throughput=rate: ([0-9.]+)",
            "--replicas=1",
            "--per-replica-batch-size=1",
        ),
    ],
)
def test_what_does_not_count_its_variables_has_no_table(harness, measured):
    """They are known when it runs."""
    code, out, err = harness("sweep", "--dry-run", "--json", *measured)

    assert exit_codes.OK == code, err
    assert "memory" not in json.loads(out)
