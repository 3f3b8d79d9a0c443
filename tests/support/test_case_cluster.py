"""Cases in real clusters: every result comes back, and no failure is waited for."""

import case_cluster
import pytest

pytestmark = pytest.mark.processes

# Without TensorFlow, so that its processes start quickly.
MODULE = """
import json, os, sys, time

def rank():
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]

def set_up(folder, *, how="well"):
    if how == "badly":
        raise RuntimeError("nothing to start from")
    return (how,)

def hang(how):
    time.sleep(600)

def fail(how):
    raise ValueError(f"not on worker {rank()}")

def can_continue(values, how):
    return "part" not in values

def afterwards(folder):
    (folder / f"after_{rank()}").touch()

CASES = {
    "place": lambda how: [how, rank()],
    "fail": fail,
    "function": lambda how: (lambda: how),
    "part": lambda how: "part",
    "hang": hang,
    "behind": lambda how: "behind",
}
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "some_cases.py").write_text(MODULE, encoding="utf-8")

    def started(*cases, timeout_sec=60.0, **options):
        return case_cluster.started(
            "some_cases",
            tmp_path,
            path=tmp_path,
            cases=cases,
            options=options,
            case_timeout_sec=timeout_sec,
            num_workers=2,
        )

    return started


def test_every_process_gives_its_result_of_every_case(run, tmp_path):
    """A case that raises harms no other; what follows the last one is done."""
    with run("place", "fail", "behind") as running:
        assert [["well", 0], ["well", 1]] == running.values("place")
        assert "ValueError: not on worker 1" == running.error("fail", 1)
        assert ["behind", "behind"] == running.values("behind")
        assert running.ends_well(60)
    assert all((tmp_path / f"after_{worker}").exists() for worker in range(2))


@pytest.mark.parametrize(
    ("case", "ask", "message"),
    [
        ("fail", "value", r"(?s)fail in process 0:.*ValueError: not on worker 0"),
        ("place", "error", r"place raised nothing, but returned \['well', 0\]"),
    ],
)
def test_asking_for_what_did_not_come_fails_the_test(run, case, ask, message):
    with run(case) as running, pytest.raises(pytest.fail.Exception, match=message):
        getattr(running, ask)(case)


def test_processes_that_cannot_continue_together_end(run, tmp_path):
    """The case itself has its result, those behind it have none."""
    with run("part", "behind") as running:
        assert ["part", "part"] == running.values("part")
        assert running.ends_well(60)
        with pytest.raises(pytest.fail.Exception, match="ended before behind"):
            running.value("behind")


def test_a_case_that_hangs_ends_its_process(run):
    """The output says where it was."""
    with run("hang", timeout_sec=1.0) as running:
        assert not running.ends_well(60)
        assert "in hang" in running.last_output()


def test_a_process_that_cannot_start_fails_the_test(run):
    """With what it wrote, and before the time is over."""
    with (
        run("place", how="badly") as running,
        pytest.raises(
            pytest.fail.Exception,
            match=r"(?s)process 0 ended before place.*nothing to start from",
        ),
    ):
        running.value("place")


def test_what_cannot_be_written_is_an_error_of_its_case(run):
    """Not of the process."""
    with run("function", "place") as running:
        running.value("place")
        assert "pickle" in running.error("function").lower()
