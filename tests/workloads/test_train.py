"""Each ``train.py`` is a program: in the tree, and as a folder that was copied."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# By workload: what makes its network small, and what it prints of held-out data.
PROGRAMS = {
    "resnet50": (
        ["--image-size", "32", "--per-replica-batch-size", "2", "--num-classes", "10"],
        r"held-out top-1: 0\.\d{3} \(n = 359\)",
    ),
    "keras_fit": (
        ["--image-size", "32", "--per-replica-batch-size", "2", "--num-classes", "10"],
        r"held-out top-1: 0\.\d{3} \(n = 359\)",
    ),
    "sngan": (
        ["--preset", "smoke", "--image-size", "8", "--per-replica-batch-size", "4"],
        r"fid: \d+\.\d{3} \(n = 200\)",
    ),
    "transformer": (
        ["--preset", "smoke", "--num-layers", "1", "--per-replica-batch-size", "128"],
        r"held-out bits per byte: \d\.\d{3} \(n = 64\)",
    ),
}


def python(*words, cwd):
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": f"{cwd}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return re.sub(r"\x1b\[[\d;]*m", "", done.stdout)  # without colours


@pytest.mark.processes
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_folder_that_was_copied_trains(name, tmp_path):
    """Two replicas, losses and a rate for each step; nothing of the harness."""
    shutil.copytree(ROOT / "workloads" / name, tmp_path / "mine")
    small, measured = PROGRAMS[name]
    script = (
        "import runpy, sys\n"
        f"sys.argv[1:] = {['--replicas', '2', '--steps', '2', *small]!r}\n"
        "runpy.run_module('mine.train', run_name='__main__', alter_sys=True)\n"
        "ours = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not ours & {'harness', 'results', 'reports'}, ours\n"
    )
    printed = python("-c", script, cwd=tmp_path)

    assert re.search(r"2/2 .*loss: \d+\.\d+", printed), printed
    assert re.search(r"(images|tokens)/s: \d+\.\d+", printed), printed
    assert re.search(measured, printed), printed


@pytest.mark.processes
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_its_help_has_the_settings_of_the_paper(name):
    """As ``python -m workloads.NAME.train``; each field of its configuration."""
    printed = " ".join(
        python("-m", f"workloads.{name}.train", "--help", cwd=ROOT).split()
    )

    assert "--replicas" in printed
    about, value = {
        "resnet50": (
            "--learning-rate-per-256 FLOAT at a global batch of 256;",
            "[0.1]",
        ),
        "keras_fit": ("--momentum FLOAT the same", "[0.9]"),
        "sngan": ("--latent-size INT length of z ~ N(0, I)", "[2250000]"),
        "transformer": ("--num-layers INT blocks of attention and", "[120]"),
    }[name]
    assert about in printed
    assert value in printed


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_it_is_read_on_one_page(name):
    text = (ROOT / "workloads" / name / "train.py").read_text(encoding="utf-8")

    assert len(text.splitlines()) <= 250
    imported = re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE)
    assert not {"harness", "results", "reports"} & {*imported}
