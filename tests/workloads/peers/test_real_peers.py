"""Peers in their own environments: they repeat our losses, and are measured.

`make test-peers` makes the environments; elsewhere these tests are skipped.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.exit_codes import UNFIT
from results.study.equivalence import OWN_CHECK
from workloads.peers.catalog import PEERS

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        not os.environ.get("REQUIRE_PEERS"),
        reason="other frameworks are in environments of their own: make test-peers",
    ),
]
ROOT = Path(__file__).resolve().parents[3]
TIME_LIMIT_SEC = 600


@pytest.mark.parametrize(
    ("workload", "data", "minutes", "dtype"),
    [
        ("resnet50", "synthetic", "3", "float32"),
        ("resnet50", "digits", "1", "mixed_bfloat16"),
        ("sngan", "digits", "1", "float32"),
    ],
)
def test_peers_repeat_our_first_losses_and_are_measured(
    tmp_path, workload, data, minutes, dtype
):
    own = {
        name
        for name, peer in PEERS.items()
        if workload in peer.programs
        and dtype in peer.programs[workload]["compute_dtype"]
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "harness", "sweep", "--workload", workload),
            *("--preset", "smoke", "--data", data, "--replicas", "2"),
            *("--mode", "weak", "--backends", ",".join(["in_graph", *sorted(own)])),
            *("--repeats", "2", "--time-budget", f"{minutes}min", "--no-match"),
            *("--option", f"compute_dtype={dtype}"),
            *("--study", "peers", "--runs-dir", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_SEC,
        check=False,
    )

    assert done.returncode in (0, UNFIT), done.stdout[-2000:] + done.stderr[-2000:]
    found = {}
    for path in tmp_path.glob("peers/trials/*/result.json"):
        result = json.loads(path.read_text())
        spec = json.loads(path.with_name("spec.json").read_text())
        checks = {check["name"]: check for check in result["sanity"]}
        if spec["backend"] in own:
            found.setdefault(spec["backend"], []).append(checks[OWN_CHECK]["is_passed"])
        assert result["blocks"]
    assert {name: [True] * len(seen) for name, seen in found.items()} == found
    assert own == set(found)
