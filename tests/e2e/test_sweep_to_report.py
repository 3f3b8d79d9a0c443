"""One real sweep, from the command line to the report, with TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from results.records import TrialStatus
from results.store import Store

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SEC = 400
NUM_PARAMETERS = 25_557_032
NUM_TEST_IMAGES = 359

pytestmark = pytest.mark.processes


def test_a_smoke_sweep_of_the_real_network_ends_in_a_report(tmp_path: Path) -> None:
    """Real data, real network, two replica counts: numbers that are sane."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "harness",
            "sweep",
            "--workload=resnet50",
            "--preset=smoke",
            "--backends=in_graph",
            "--replicas=1,2",
            "--mode=weak,strong",
            "--repeats=1",
            "--study=s",
            f"--runs-dir={tmp_path / 'runs'}",
            "--json",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SEC,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    store = Store.open(tmp_path / "runs" / "s")
    trials = list(store.trials())
    page = store.report_path.read_text(encoding="utf-8")

    assert {TrialStatus.OK} == {t.status.status for t in trials if t.status}
    assert summary["coverage"] == {"planned": 3, "ok": 3}
    assert {(1, "weak"), (2, "weak"), (1, "strong"), (2, "strong")} == {
        (point["num_replicas"], point["mode"]) for point in summary["points"]
    }
    for trial in trials:
        result = trial.result

        assert result is not None
        assert result.num_parameters == NUM_PARAMETERS
        assert result.examples_per_sec > 0
        assert result.quality[0].num_examples == NUM_TEST_IMAGES
        assert "replicas_in_sync" in {check.name for check in result.sanity}
        assert trial.trial_id[:8] in page
    assert "http://" not in page.replace("http://www.w3.org/", "")
