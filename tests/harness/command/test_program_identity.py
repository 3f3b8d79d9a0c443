"""Programs in a folder: what tells one from another, and what they may claim."""

import html
import re
import subprocess

import pytest

from harness.cli import exit_codes

pytestmark = pytest.mark.processes
TRAIN = """
import random, sys, time
from lib import model
replicas, seed = int(sys.argv[1]), sys.argv[2]
noise = random.Random(f"{replicas} {seed}")
for _ in range(7):
    time.sleep(0.02)
    print("epoch took", model.EPOCH / replicas * noise.gauss(1, 0.005), flush=True)
if replicas == model.FAILS:
    open("data.csv", "w").write("a,b")
    raise ValueError("no data")
"""
SWEEP = (
    *("sweep", "--command=python3 train.py {replicas} {seed}", "--study=s"),
    *("--metric=step_time=took ([0-9.]+)", "--replicas=1,2", "--repeats=3"),
)


@pytest.fixture
def folder(tmp_path):
    """A folder with a program and a module of its own."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "model.py").write_text("EPOCH, FAILS = 1.0, 0\n")
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


@pytest.mark.usefixtures("with_pages")
def test_the_time_of_an_epoch_is_no_step_time(harness, folder):
    """200 % is a failed check with its reasons, and the clock denies the steps."""
    code, out, err = harness(*SWEEP, "--work=per-replica", "--efficiency-target=50%")

    assert exit_codes.OK == code, err
    page = (folder / "runs" / "s" / "report" / "index.html").read_text()
    first_screen = html.unescape(page[: page.index('id="scaling"')])
    for text in (out, first_screen):
        assert "Not reliable" in text
        assert "An efficiency above 110\u202f% is not plausible. Usual reas" in text, (
            text
        )
        assert "The harness's clock contradicts the rates: with " in text
    assert "above the target" not in html.unescape(page)
    assert "1 efficiency above 110" in first_screen
    assert "grade D of A to D: numbers that the harness's clock contra" in first_screen
    assert exit_codes.OK == harness("verify", "s")[0]


@pytest.mark.parametrize("has_git", [False, True])
def test_a_module_that_changes_makes_another_program(harness, folder, has_git):
    """Its figures are not mixed into a study; data that arrived is no program."""
    model = folder / "lib" / "model.py"
    model.write_text("EPOCH, FAILS = 1.0, 2\n")
    if has_git:
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
        for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "one")):
            subprocess.run(["git", *who, *words], cwd=folder, check=True)
    code, _, err = harness(*SWEEP, "--work=fixed")
    assert exit_codes.OK != code
    assert "its first error: 'ValueError: no data'" in err or "no data" in err
    assert (folder / "data.csv").exists()
    (folder / "weights.bin").write_bytes(b"0" * 10_000)
    _, _, err = harness(*SWEEP, "--work=fixed", "--retry=failed")
    assert "another program" not in err
    model.write_text("EPOCH, FAILS = 2.0, 0\n")
    code, _, err = harness(*SWEEP, "--work=fixed", "--retry=failed")

    assert exit_codes.USAGE == code
    assert re.search("with another program: (file|uncommitted) lib/model.py '", err)
