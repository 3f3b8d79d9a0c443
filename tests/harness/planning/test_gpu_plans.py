"""What ``make sweep-gpu`` plans on 1 to 8 GPUs: its question, and how long it takes.

Nobody has run it. The clock of the stand-in adds up, for each trial that the sweep
starts, what others have published or what is the same on CPUs; an estimate that forgets
trials, or what grows with GPUs, is far from it.
"""

import json
import re
import sys
from pathlib import Path

import pytest
from fake_nvml import FakeNvml, make_gpus

from harness.cli import exit_codes
from harness.cli import main as cli
from harness.planning import estimate

ROOT = Path(__file__).resolve().parents[3]

# In seconds, of ResNet-50 with 224 px. Images per second and GPU: A100, mixed precision
# (DeepLearningExamples). A context of CUDA: 1 to 2 s each, in turn. Imports, tracing
# and checks: of trials on two cores here. Choosing kernels: cuDNN tries those of
# 53 convolutions in three directions, each for some milliseconds, on all GPUs at once.
IMPORTS, CONTEXT, TRACE, CHOICE, CHECKS, END = 9.0, 1.5, 15.0, 12.0, 4.0, 3.0
REPLICA_TRACE = 3.0
IMAGES_PER_SEC = 2375.0


def seconds(spec):
    num_gpus = spec["num_replicas"]
    num_steps = spec["num_warmup_steps"] + spec["num_measured_steps"]
    steps = num_steps * spec["per_replica_batch_size"] / IMAGES_PER_SEC
    start = IMPORTS + CONTEXT * num_gpus + TRACE + REPLICA_TRACE * num_gpus + CHOICE
    return start + steps + CHECKS + END


@pytest.fixture
def plan(monkeypatch, tmp_path, capsys):
    """Returns a function that plans make's sweep on some GPUs."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (flags,) = re.findall(r"^SWEEP_GPU_FLAGS \?= (.+)$", makefile, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def run(num_gpus):
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(make_gpus(num_gpus)))
        code = cli.main(
            ["sweep", "--dry-run", "--json", "--device=gpu", *flags.split()]
        )
        printed = capsys.readouterr()
        assert exit_codes.OK == code, printed.err
        return json.loads(printed.out)

    return run


@pytest.mark.parametrize(
    ("num_gpus", "question"),
    [
        (1, "single / in_graph, weak scaling, x1"),
        (2, "in_graph, weak scaling, x2 / x1"),
        (4, "in_graph, weak scaling, x4 / x1"),
        (8, "in_graph, weak scaling, x8 / x1"),
    ],
)
def test_the_question_is_scaling_and_the_time_is_right(plan, num_gpus, question):
    """To a factor of 1.3, with the trials that match replicas, which are not timed."""
    found = plan(num_gpus)
    trials = [*found["trials"], *found["matching"]["trials"]]
    expected = sum(seconds(trial["spec"]) for trial in trials)

    assert question == found["measuring"]["primary"]["text"]
    assert len(found["trials"]) == found["num_missing"]
    assert expected / 1.3 <= found["estimated_sec"] <= expected * 1.3
    assert re.fullmatch(
        r"assuming 42 s per trial, 5 s per GPU of it and 0.1 s per step: no .*",
        found["estimate_basis"],
    )


def test_eight_gpus_take_more_than_half_an_hour(plan):
    """Of 27 trials, and 7 that match; of CPUs, 30 s each are assumed."""
    found = plan(8)

    assert (27, 7) == (len(found["trials"]), len(found["matching"]["trials"]))
    assert 33 < found["estimated_sec"] / 60 < 45
    assert found["estimated_sec"] > 34 * estimate.ASSUMED_TRIAL_SEC
