"""A stored study as baseline is weaker, and only counts where nothing else differs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.cli import exit_codes

pytestmark = pytest.mark.processes


def test_a_named_baseline_is_judged_as_weaker(
    gate: Any, harness: Any, stored: str
) -> None:
    """The default baseline needs no option; what varies between days is not known."""
    harness("baseline", "set", stored)
    code, out, err = gate("--study=new", "--seed=1")

    assert exit_codes.INCONCLUSIVE == code, err
    assert re.search(r"^a weaker comparison: the two were not", out, re.MULTILINE)
    assert re.search(
        r"^ADVICE, NO VERDICT: (PASS|IMPROVE): throughput against baseline default"
        r" \(study stored\)",
        out,
        re.MULTILINE,
    )


def test_a_baseline_of_several_days_gives_a_verdict(
    gate: Any, harness: Any, stored: str
) -> None:
    """Set, shown, and judged; two copies are dated to other days, 3 % apart."""
    for name, day, factor in (("b", "02", 1.02), ("c", "03", 0.99)):
        shutil.copytree(Path("runs", stored), Path("runs", name))
        for path in Path("runs", name).glob("**/*.json"):
            text = path.read_text().replace(
                f'"study": "{stored}"', f'"study": "{name}"'
            )
            record = json.loads(text)
            if path.name == "status.json":
                record["started_at"] = f"2026-01-{day}T00:00:00+00:00"
            if path.name == "result.json":
                for turn in record["turns"]:
                    taken = factor * (turn["end_ns"] - turn["start_ns"])
                    turn["end_ns"] = turn["start_ns"] + round(taken)
            path.write_text(json.dumps(record))
    code, out, err = harness("baseline", "set", stored, "--days=b,c")
    assert (exit_codes.OK, f"default: {stored} and 2 other days\n") == (code, out), err
    assert (
        f"default: {stored} and 2 other days, set at" in harness("baseline", "show")[1]
    )

    code, out, err = gate("--study=new", "--seed=1")

    verdict = re.search(r"^([A-Z]+): throughput against", out, re.MULTILINE)
    assert verdict is not None, out + err
    expected = {"PASS": exit_codes.OK, "IMPROVE": exit_codes.OK}
    expected |= {"REGRESS": exit_codes.REGRESSION}
    assert code == expected.get(verdict[1], exit_codes.INCONCLUSIVE)
    assert "ADVICE" not in out
    assert "passes with probability 45.0% at most" in out


@pytest.mark.parametrize("option", [(), ("--baseline=stored",)])
def test_an_efficiency_is_refused_before_anything_is_measured(
    gate: Any, harness: Any, stored: str, option: tuple[str, ...]
) -> None:
    """Nothing of a machine cancels that both sides had at other times."""
    harness("baseline", "set", stored)
    replicas = ("--replicas=1,2", "--metric=efficiency")
    code, out, err = gate(*option, *replicas, "--study=new")

    assert (exit_codes.USAGE, "") == (code, out)
    assert re.fullmatch(
        r"error: efficiency against .* cannot be judged: .* with a revision of git\n",
        err,
    )
    assert not Path("runs", "new").exists()


def test_another_machine_is_refused_before_anything_is_measured(
    gate: Any, stored: str
) -> None:
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
def test_another_setting_is_refused(
    gate: Any, stored: str, option: str, message: str
) -> None:
    """A gate is about code: everything else must be equal."""
    code, out, err = gate(f"--baseline={stored}", "--study=new", option)

    assert (exit_codes.USAGE, "") == (code, out)
    assert re.search(message, err), err
    assert not Path("runs", "new").exists()
