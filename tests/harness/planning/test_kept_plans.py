"""The same request has the plan that was kept; and the plan on 1 to 8 GPUs.

Nobody has run that on GPUs. The clock of the stand-in adds up, for each trial that the
sweep starts, what others have published or what is the same on CPUs; an estimate that
forgets trials, or what grows with GPUs, is far from it.
"""

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
from fake_nvml import FakeNvml, make_gpus

from harness.cli import exit_codes
from harness.cli import main as cli
from harness.machine import machine_state
from harness.machine.machine_state import CpuTopology, LogicalCpu
from harness.planning import estimate
from harness.sources import code_digest
from results.records import identity, program
from workloads.catalog import WORKLOADS
from workloads.d4pg import requirements

KEPT = json.loads((Path(__file__).parent / "kept_plans.json").read_text())
# What is of this call, and what workloads declare, whose tests are elsewhere.
_LEFT_OUT = (
    *("created_at", "estimated_sec", "estimated_most_sec", "estimate_basis"),
    *("amplifies_rounding", "metrics", "program_code"),
)


@pytest.fixture
def plan(harness, monkeypatch):
    """Returns a function that plans on a machine of four cores and two GPUs."""
    cpus = tuple(LogicalCpu(cpu=cpu) for cpu in range(4))
    monkeypatch.setattr(machine_state, "read_topology", lambda: CpuTopology(cpus=cpus))
    monkeypatch.setattr(code_digest, "of_trial", lambda *_: "00")
    monkeypatch.setattr(requirements, "check", lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(make_gpus(2)))
    for name in (*program.IDENTITY, "TFDS_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, info in WORKLOADS.items():
        monkeypatch.setitem(WORKLOADS, name, dataclasses.replace(info, version="1"))

    def run(command):
        code, out, err = harness(*command.split())
        assert exit_codes.OK == code, err
        return json.loads(out)

    return run


@pytest.mark.parametrize("command", KEPT)
def test_a_request_has_the_plan_that_was_kept(plan, command):
    """Ids of trials and cases, name of the study, seeds, and everything recorded."""
    found = plan(command)
    recorded = {k: v for k, v in found.items() if k not in _LEFT_OUT}
    recorded["command"] = found["command"][:3]
    # Added later, for gates.
    assert recorded["measuring"].pop("gate") is None
    assert not recorded["measuring"].pop("had_target")
    recorded = json.loads(
        json.dumps(recorded)
        .replace('"schema_version": 6', '"schema_version": 5')
        .replace('"program": null, ', "")
        .replace('"plugins": {}, ', "")
    )

    assert KEPT[command]["study"] == found["study"]
    assert KEPT[command]["num_trials"] == len(found["trials"])
    assert KEPT[command]["digest"] == identity.digest(recorded)


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
def plan_gpus(monkeypatch, tmp_path, capsys):
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
def test_the_question_is_scaling_and_the_time_is_right(plan_gpus, num_gpus, question):
    """To a factor of 1.3, with the trials that match replicas, which are not timed."""
    found = plan_gpus(num_gpus)
    trials = [*found["trials"], *found["matching"]["trials"]]
    expected = sum(seconds(trial["spec"]) for trial in trials)

    assert question == found["measuring"]["primary"]["text"]
    assert len(found["trials"]) == found["num_missing"]
    assert expected / 1.3 <= found["estimated_sec"] <= expected * 1.3
    assert re.fullmatch(
        r"assuming 42 s per trial, 5 s per GPU of it and 0.1 s per step: no .*",
        found["estimate_basis"],
    )


def test_eight_gpus_take_more_than_half_an_hour(plan_gpus):
    """Of 27 trials, and 7 that match; of CPUs, 30 s each are assumed."""
    found = plan_gpus(8)

    assert (27, 7) == (len(found["trials"]), len(found["matching"]["trials"]))
    assert 33 < found["estimated_sec"] / 60 < 45
    assert found["estimated_sec"] > 34 * estimate.ASSUMED_TRIAL_SEC
