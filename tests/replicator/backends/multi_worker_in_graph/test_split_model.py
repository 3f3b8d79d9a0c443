"""A replica that is split over two workers trains what does not fit on one."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from replicator.cluster.local_cluster import LocalCluster

PROGRAM = Path(__file__).with_name("limited.py")
TIMEOUT_SEC = 240


def _expected_losses():
    """The same three steps of gradient descent in NumPy."""
    width, num_rows = 4096, 16384
    first = np.full([width, num_rows], 1 / width, np.float32)
    second = np.full([num_rows, width], 1 / width, np.float32)
    x = np.random.default_rng(0).normal(size=[2, width]).astype(np.float32)
    losses = []
    for _ in range(3):
        h = x @ first
        y = h @ second
        losses.append(float((y**2).mean()))
        grad = 2 * y / y.size
        grad_second, grad_h = h.T @ grad, grad @ second.T
        second -= 0.1 * grad_second
        first -= 0.1 * (x.T @ grad_h)
    return losses


@pytest.mark.full
@pytest.mark.processes
def test_a_model_that_fits_on_no_worker_trains_when_it_is_split(tmp_path):
    """Under one memory limit per process: whole it fails, split it learns."""
    argv = [sys.executable, str(PROGRAM)]
    with (
        subprocess.Popen(
            [*argv, "whole"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as whole,
        LocalCluster([*argv, "split"], num_workers=2, log_dir=tmp_path) as cluster,
    ):
        expected = _expected_losses()
        whole_output, whole_errors = whole.communicate(timeout=TIMEOUT_SEC)
        cluster.check(TIMEOUT_SEC)
        output = cluster.output("worker", 0)
        served = cluster.output("worker", 1)

    assert whole.returncode
    # An allocation fails, or the start of a thread, which needs memory for its stack.
    assert re.search(r"OOM when allocating|bad_alloc|pthread_create", whole_errors)
    assert "losses" not in whole_output
    assert "limited" in served.splitlines()
    (line,) = [text for text in output.splitlines() if text.startswith("{")]
    np.testing.assert_allclose(expected, json.loads(line)["losses"], rtol=1e-4)
