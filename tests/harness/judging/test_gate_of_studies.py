"""A stored study as baseline is weaker, and only counts where nothing else differs."""

import json
import re
from pathlib import Path

import pytest

from harness.cli import exit_codes

pytestmark = pytest.mark.processes


def test_a_stored_study_is_judged_as_weaker(gate, stored):
    """What varies between days is not known, so it is advice."""
    code, out, err = gate(f"--baseline={stored}", "--study=new", "--seed=1")

    assert exit_codes.INCONCLUSIVE == code, err
    assert re.search(r"^a weaker comparison: the two were not", out, re.MULTILINE)
    assert re.search(
        r"^ADVICE, NO VERDICT: (PASS|IMPROVE): throughput against study stored",
        out,
        re.MULTILINE,
    )


def test_an_efficiency_is_refused_before_anything_is_measured(gate, stored):
    """Nothing of a machine cancels that both sides had at other times."""
    replicas = ("--replicas=1,2", "--metric=efficiency")
    code, out, err = gate(f"--baseline={stored}", *replicas, "--study=new")

    assert (exit_codes.USAGE, "") == (code, out)
    assert re.fullmatch(
        r"error: efficiency against .* cannot be judged: .* with a revision of git\n",
        err,
    )
    assert not Path("runs", "new").exists()


def test_another_machine_is_refused_before_anything_is_measured(gate, stored):
    """The difference is named; --allow-different shows it and does not pass."""
    for path in Path("runs", stored, "trials").glob("*/env.json"):
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"fingerprint": "00" * 10}))
    code, out, err = gate("--baseline=stored", "--study=new")
    shown = gate("--baseline=stored", "--study=new", "--allow-different", "--repeats=2")

    assert (exit_codes.USAGE, "") == (code, out)
    assert re.search(
        r"'this tree' and 'study stored' are not comparable: machine fingerprint:"
        r" \w{20} / 0{20}; measure both",
        err,
    )
    assert exit_codes.INCONCLUSIVE == shown[0], shown[2]
    assert (
        "not comparable, shown only and never a pass: machine fingerprint" in shown[1]
    )
    assert "INCONCLUSIVE: throughput against study stored" in shown[1]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--num-warmup-steps=5", r"num_warmup_steps: 5 / \d"),
        ("--allocator=default", r"allocator: default / keep"),
        ("--replicas=2", r"no case is in both 'this tree' .* and 'stored'"),
    ],
)
def test_another_setting_is_refused(gate, stored, option, message):
    """A gate is about code: everything else must be equal."""
    code, out, err = gate(f"--baseline={stored}", "--study=new", option)

    assert (exit_codes.USAGE, "") == (code, out)
    assert re.search(message, err), err
    assert not Path("runs", "new").exists()
