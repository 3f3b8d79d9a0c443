"""sweep --dry-run --device-memory: which level of a sharded update fits."""

import json

import pytest

from harness.cli import exit_codes

SMOKE = ("--workload=transformer", "--preset=smoke", "--repeats=2")
BYTES = 4 * 1_074_784  # of its parameters, in float32


def test_a_plan_says_which_level_fits(harness, written):
    """All is 16 bytes per parameter; of two replicas, each keeps half of a level."""
    plan = (
        "sweep",
        "--dry-run",
        *SMOKE,
        "--replicas=1,2",
        f"--device-memory={3 * BYTES}",
    )
    code, out, _ = harness(*plan)
    _, as_json, _ = harness(*plan, "--json")

    assert exit_codes.OK == code
    tables = json.loads(as_json)["memory"]
    assert ["1", "2"] == list(tables)
    assert "\n".join(tables["2"]) in out
    rows = {row.split()[0]: row.replace(",", "").split()[1:] for row in tables["2"][2:]}
    assert [BYTES, BYTES, 2 * BYTES, 4 * BYTES] == [*map(int, rows["none"][:4])]
    for level, share in (("state", 3), ("gradients", 2.5), ("parameters", 2)):
        assert int(rows[level][3]) == pytest.approx(share * BYTES, rel=0.01)
    assert "not" in rows["none"]
    assert "fits" in rows["gradients"]
    assert "fits" in rows["parameters"]
    assert [] == written()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--workload=resnet50", "--device-memory=1000"),
            (
                "--device-memory: workload 'resnet50' does not count its variables "
                "before it runs, as transformer does; run it, and see summary("
            ),
        ),
        (
            (*SMOKE, "--device-memory=0"),
            "--device-memory: '0' is not an integer from 1 to",
        ),
        (
            (
                "--command=true {replicas}",
                "--metric=throughput=rate: ([0-9.]+)",
                "--replicas=1",
                "--per-replica-batch-size=1",
                "--device-memory=1",
            ),
            "--device-memory: a program of yours does not say what its variables are",
        ),
    ],
)
def test_what_is_not_known_is_refused(harness, written, arguments, message):
    code, _, err = harness("sweep", "--dry-run", *arguments)

    assert exit_codes.USAGE == code
    assert message in err
    assert [] == written()
