"""``doctor`` prints every check, and exits with 6 where one is bad."""

import json

import pytest

from harness.cli import exit_codes
from harness.doctor import diagnose, load
from harness.doctor.finding import bad, caution, ok

OK = ok("steal", "0.0 % of the cores")
CAUTION = caution("boost", "on: [bold]x", "switch it off")
BAD = bad("swap", "1.0 GiB in use", "end other programs")


@pytest.mark.parametrize(
    ("findings", "code", "last_line"),
    [
        ([OK], exit_codes.OK, "fit for timings"),
        ([OK, CAUTION], exit_codes.OK, "fit for timings, with 1 caution"),
        ([CAUTION, CAUTION], exit_codes.OK, "fit for timings, with 2 cautions"),
        ([OK, BAD, CAUTION], exit_codes.UNFIT, "unfit for timings: swap"),
    ],
)
def test_the_table_and_the_exit_code(harness, monkeypatch, findings, code, last_line):
    monkeypatch.setattr(diagnose, "diagnose", lambda measures: findings)
    found_code, out, err = harness("doctor")

    assert code == found_code
    assert last_line == out.splitlines()[-1]
    for finding in findings:
        (row,) = {line for line in out.splitlines() if f" {finding.check} " in line}
        assert finding.level in row
        assert finding.found in row
        assert finding.advice in row
    assert err.startswith("checking for about ")


def test_json_has_the_same(harness, monkeypatch):
    monkeypatch.setattr(diagnose, "diagnose", lambda measures: [OK, BAD])
    code, out, _ = harness("doctor", "--json")
    data = json.loads(out)

    assert exit_codes.UNFIT == code
    assert data["is_fit"] is False
    assert [
        {"check": f.check, "level": f.level, "found": f.found, "advice": f.advice}
        for f in (OK, BAD)
    ] == data["findings"]


def test_every_check_has_its_row(monkeypatch):
    """On this machine, without the canaries; what is not ok says what to do."""
    monkeypatch.setattr(load, "SPAN_SEC", 0.1)
    findings = diagnose.diagnose(measures=(lambda cores: [ok("x", str(len(cores)))],))
    checks = [finding.check for finding in findings]

    assert len(checks) == len(set(checks))
    assert {"neighbours", "steal", "throttling", "CPU quota", "memory"} <= set(checks)
    assert "x" == checks[-1]
    assert all((f.level == "ok") == (f.advice == "") for f in findings)
    assert all("\n" not in f.found + f.advice for f in findings)
