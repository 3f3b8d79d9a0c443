"""What this machine lacks for a workload, and what sharding keeps."""

import json
import re

import pytest
from command_lines import overridden

from harness import ExitCode, main


@pytest.fixture
def refuse(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*options, preset="smoke"):
        base = ("--workload=d4pg", f"--preset={preset}", "--budget=none", "--repeats=1")
        words = overridden((*base, "--backends=in_graph", "--replicas=1"), *options)
        code = main(("sweep", *words))
        out, err = capfd.readouterr()

        assert (ExitCode.USAGE, "") == (code, out)
        assert [] == list(tmp_path.iterdir())
        assert re.fullmatch("error: [^\n]*\n", err)
        return err

    return run


NO_OPENGL = (
    r"option observations='pixels' needs OpenGL, which does not work here \(MUJOCO_GL=e"
    r"gl: .*\): install it \(Debian: apt-get install .*\), or use observations='state'"
)
NO_MEMORY = (
    r"replay_capacity=200000 needs 26 MB of memory for observations='state', but 10 MB"
    r" are available here: use less, such as replay_capacity=69000, or another machine"
)
NO_ENVIRONMENTS = (
    r"data 'cartpole:swingup' cannot be created here \(import of dm_control.suite halte"
    r"d; None in sys.modules\): check the installation of dm-control and mujoco"
)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        # Also where the preset requires them; EGL finds no driver here.
        ("OpenGL", ["--option=observations=pixels"], NO_OPENGL),
        ("OpenGL", ["--data=cartpole:swingup", "--preset=gpu"], NO_OPENGL),
        # Observations of walker are 24 numbers, actions 6.
        ("memory", ["--data=walker:walk", "--preset=laptop"], NO_MEMORY),
        (
            *("", ["--per-replica-batch-size=10001", "--replicas=1,2", "--mode=weak"]),
            "replay_capacity=20000 is less than the 20002 transitions of one learner",
        ),
        # As a MuJoCo that is too new for dm_control.
        ("environments", [], NO_ENVIRONMENTS),
    ],
)
def test_what_this_machine_lacks_is_named(
    refuse, monkeypatch, tmp_path_factory, what, options, message
):
    if what == "OpenGL":
        monkeypatch.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", "/nonexistent")
        monkeypatch.delenv("MUJOCO_GL", raising=False)
    elif what == "memory":
        monkeypatch.setattr(
            "workloads.d4pg.capacity.available_bytes", lambda: 10_000_000
        )
    elif what == "environments":
        folder = tmp_path_factory.mktemp("broken")
        text = "import sys\nsys.modules['dm_control.suite'] = None\n"
        (folder / "sitecustomize.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(folder))
    err = refuse(*options)

    assert re.search(message, err), err


SMOKE = ("--workload=transformer", "--preset=smoke", "--repeats=2")
BYTES = 4 * 1_074_784  # of its parameters, in float32


def test_a_plan_says_what_each_level_keeps(succeed, written):
    """All is 16 bytes per parameter; of two replicas, each keeps half of a level."""
    plan = ("sweep", "--dry-run", *SMOKE, "--replicas=1,2")
    out = succeed(*plan)
    tables = json.loads(succeed(*plan, "--json"))["memory"]

    assert ["1", "2"] == list(tables)
    assert "\n".join(tables["2"]) in out
    rows = {row.split()[0]: row.replace(",", "").split()[1:] for row in tables["2"][2:]}
    assert [BYTES, BYTES, 2 * BYTES, 4 * BYTES] == [*map(int, rows["none"][:4])]
    for level, share in (("state", 3), ("gradients", 2.5), ("parameters", 2)):
        assert int(rows[level][3]) == pytest.approx(share * BYTES, rel=0.01)
    assert [] == written()
