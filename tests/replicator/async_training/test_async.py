"""Cases of two workers and two servers, and of one core."""

import sys
from pathlib import Path

import case_cluster
import pytest
from case_cluster import load

pytestmark = pytest.mark.processes


two_server_cases = load(Path(__file__).with_name("two_server_cases.py"))


@pytest.mark.parametrize("case", two_server_cases.CASES)
def test_two_servers(two_servers, case):
    """The chief finds nothing wrong."""
    assert two_servers.value(case) is None


MEMBER = Path(__file__).parent / "one_core_member.py"


@pytest.mark.parametrize(
    ("threads", "exit_code", "printed"),
    [
        ("one thread", 0, "count 4.0"),
        ("too late", 1, "set_inter_op_parallelism_threads(4) at the start"),
    ],
)
def test_steps_end_on_one_core(tmp_path, threads, exit_code, printed):
    """Requests that wait for each other need more threads than TensorFlow makes."""
    with case_cluster.ForkedCluster(
        [sys.executable, str(MEMBER), threads],
        env=case_cluster.ENV,
        num_workers=2,
        num_ps=1,
        has_chief=True,
        log_dir=tmp_path,
    ) as cluster:
        codes = cluster.wait(600, ["chief"])
        output = cluster.output("chief", 0)

    assert exit_code == codes["chief", 0], output
    assert printed in output
