"""``--controls`` takes names, all or none, and says which names there are."""

import re

import pytest

from harness.errors import ParseError
from harness.options.option import declared
from harness.planning.request import SweepRequest

(KIND,) = (of.kind for of in declared(SweepRequest) if of.field == "controls")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("none", []),
        ("all", ["nosync", "solo", "synthetic", "input_only", "no_update"]),
        ("synthetic,nosync", ["nosync", "synthetic"]),
        ("solo", ["solo"]),
        ("input_only", ["input_only"]),
        ("no_update", ["no_update"]),
    ],
)
def test_controls_are_parsed_in_one_order(text, names):
    """So that the same controls are the same plan."""
    assert names == [control.value for control in KIND.read(text, "--controls")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("twin", r"^--controls: unknown control 'twin'; allowed are nosync, solo, "),
        ("all,solo", r"^--controls: 'all' stands beside other names in 'all,solo'; "),
        ("solo,", r"^--controls: 'solo,' has an empty name; "),
    ],
)
def test_other_names_are_an_error(text, message):
    with pytest.raises(ParseError) as caught:
        KIND.read(text, "--controls")

    assert re.search(message, str(caught.value))


def test_controls_are_planned_from_the_command_line(harness):
    """The plan has them, and a note says whose they are."""
    code, _, err = harness(
        "sweep",
        "--dry-run",
        "--workload=resnet50",
        "--preset=smoke",
        "--replicas=1,2",
        "--order=relay",
        "--budget=none",
        "--controls=solo,synthetic",
    )

    assert 0 == code
    assert "controls solo, synthetic: of in_graph x2, weak scaling" in err


def test_controls_in_sequence_exit_with_2(harness, written):
    code, _, err = harness(
        "sweep",
        "--workload=resnet50",
        "--preset=smoke",
        "--replicas=1,2",
        "--order=sequential",
        "--controls=all",
    )

    assert 2 == code
    assert (
        "--controls nosync,solo,synthetic,input_only,no_update with order sequential"
    ) in err
    assert [] == written()
