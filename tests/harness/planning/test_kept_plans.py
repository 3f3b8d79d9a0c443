"""The same request has the same plan, byte for byte, as it had when it was kept."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from fake_nvml import FakeNvml, make_gpus

from harness.cli import exit_codes
from harness.machine import topology
from harness.machine.topology import CpuTopology, LogicalCpu
from harness.sources import code_digest
from results.records import identity, variables
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
    """Returns a function that plans on a machine of four cores and two GPUs.

    Code, versions of workloads and variables are those of no real machine.
    """
    cpus = tuple(LogicalCpu(cpu=cpu) for cpu in range(4))
    monkeypatch.setattr(topology, "read_topology", lambda: CpuTopology(cpus=cpus))
    monkeypatch.setattr(code_digest, "of_trial", lambda *_: "00")
    monkeypatch.setattr(requirements, "check", lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(make_gpus(2)))
    for name in variables.IDENTITY:
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
