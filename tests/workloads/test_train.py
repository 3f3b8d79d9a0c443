"""Each ``train.py`` is a program, in the tree and copied; what its children inherit."""

import os
import re
import shutil
import sys
from pathlib import Path

import case_cluster
import fork_server
import pytest
import tiny_models

from workloads import ONE_THREAD, child_environment

ROOT = Path(__file__).resolve().parents[2]
HELD_OUT = r"top_1: 0\.\d{3} \(n = 359\)"
SMALL_CNN = f"{tiny_models.__file__}:small_cnn"
TWO_IMAGES = ["--image-size", "32", "--per-replica-batch-size", "2"]
# By workload: a small training, what it prints of held-out data, and a line of --help.
PROGRAMS = {
    "resnet50": (
        [*TWO_IMAGES, "--num-classes", "10"],
        HELD_OUT,
        r"--learning-rate-per-256 FLOAT at a global batch of 256;.* \[0\.1\]",
    ),
    "keras_fit": (
        [*TWO_IMAGES, "--num-classes", "10", "--model", SMALL_CNN],
        HELD_OUT,
        r"--momentum FLOAT the same.* \[0\.9\]",
    ),
    "sngan": (
        ["--preset", "smoke", "--image-size", "8", "--per-replica-batch-size", "4"],
        r"fid: \d+\.\d{3} \(n = 200\)",
        r"--latent-size INT length of z ~ N\(0, I\).* \[2250000\]",
    ),
    "d4pg": (
        [
            *("--preset", "smoke", "--policy-sizes", "8", "--critic-sizes", "8"),
            *("--num-actors", "1", "--min-replay-size", "20", "--action-repeat", "50"),
            *("--per-replica-batch-size", "4"),
        ],
        r"episode_return: \d+\.\d{3} \(n = 2\)",
        r"--num-atoms INT returns that the critic gives.* \[101\]",
    ),
    "transformer": (
        ["--preset", "smoke", "--num-layers", "1", "--per-replica-batch-size", "128"],
        r"bits_per_byte: \d\.\d{3} \(n = \d+\)",
        r"--num-layers INT blocks of attention and.* \[120\]",
    ),
}
# The network of ResNet-50 is short here: its whole length takes seconds to trace.
PROGRAM = """
import runpy, sys
sys.path.insert(0, {folder!r})
if {name!r} == "resnet50":
    from mine import ResNet50
    ResNet50.num_blocks, ResNet50.widths = (1, 1), (8, 16)
for words in (["--help"], ["--replicas", "2", "--steps", "2", *{small!r}]):
    sys.argv[1:] = words
    try:
        runpy.run_module("mine.train", run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, ended.code
ours = {{name.partition(".")[0] for name in sys.modules}}
assert not ours & {{"harness", "results", "reports"}}, ours
"""


@pytest.mark.processes
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_folder_that_was_copied_trains(name, tmp_path):
    small, measured, setting = PROGRAMS[name]
    shutil.copytree(ROOT / "workloads" / name, tmp_path / "mine")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(name=name, small=small, folder=str(tmp_path)))
    train = (ROOT / "workloads" / name / "train.py").read_text(encoding="utf-8")
    assert len(train.splitlines()) <= 250  # it is read on one page
    code, output = fork_server.server(**case_cluster.ENV).run(
        [str(program)],
        env=child_environment({**case_cluster.ENV, "COLUMNS": "80"}),
        log=tmp_path / "log",
        timeout_sec=600,
    )
    printed = " ".join(re.sub(r"\x1b\[[\d;]*m", "", output).split())  # no colours

    assert 0 == code, output
    assert re.search(setting, printed), printed
    assert re.search(r"2/2 .*loss: \d+\.\d+", printed), printed
    assert re.search(r"(images|tokens|transitions)/s: \d+\.\d+", printed), printed
    assert re.search(measured, printed), printed


def test_variables_are_added_and_the_others_kept(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "path", ["", "/somewhere", str(ROOT)])

    assert {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}/somewhere"} == (
        child_environment()
    )
    found = child_environment(ONE_THREAD)
    assert ("1", "0") == (found["OMP_NUM_THREADS"], found["LP_NUM_THREADS"])
