"""The A/A pair: what a relay of two equal cases says about this machine."""

import dataclasses
import itertools
import math
import re

import pytest

from harness.cli import exit_codes
from harness.doctor import diagnose, pair
from harness.errors import DoesNotFitError
from harness.planning import defaults
from results.judging import power
from results.records.models import Control

SECONDS = 0.1
"""The fake worker starts at once; at least five rounds are taken."""


def measure(settings):
    (finding,) = pair.check_pair([0, 1], SECONDS, settings)
    return finding


def voiding(settings, *is_void):
    """Returns settings by which turns are void in turn; the others are valid."""
    answers = itertools.cycle(is_void)
    return dataclasses.replace(
        settings,
        void_reason=lambda _load, _retraces: (
            "others were busy" if next(answers) else ""
        ),
    )


@pytest.mark.processes
def test_a_quiet_pair_says_what_a_default_sweep_gives(settings):
    """The fake worker's steps hardly vary; what is assumed is said."""
    finding = measure(settings)

    assert "A/A pair" == finding.check
    assert "ok" == finding.level
    assert re.fullmatch(
        r"ratio [01]\.\d{3} \[.*\] in 5 rounds, which vary by 0\.\d %; 0 of 10 turns"
        r" void; in 12 min a ratio of 6 such cases would be known to \+-[345]\.\d %"
        r" \(5 generations of \d+ rounds, 2 % between processes assumed\)",
        finding.found,
    )


@pytest.mark.processes
def test_a_disturbed_pair_is_bad(settings):
    """More than 30 % of the turns are void: doctor then exits with 6."""
    finding = measure(voiding(settings, True, False))

    assert "bad" == finding.level
    assert re.fullmatch(
        r"\d+ of \d+ turns are void: in \d+ of them others were busy", finding.found
    )
    assert diagnose.is_unfit([finding])


@pytest.mark.processes
def test_a_pair_that_fails_says_why(settings, monkeypatch):
    """A caution: the machine may be fine."""
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:fail")
    finding = measure(settings)

    assert "caution" == finding.level
    assert "not measured: the reducer is out of paper" == finding.found
    assert "sweep --workload resnet50 --preset smoke" in finding.advice


def test_a_pair_that_does_not_fit_says_so(settings, monkeypatch):
    """Two processes need more memory than there is."""

    def refuse(*_args):
        raise DoesNotFitError("2 processes do not fit into memory at once")

    monkeypatch.setattr(pair, "run_generation", refuse)
    finding = measure(settings)

    assert "caution" == finding.level
    assert "not measured: 2 processes do not fit into memory at once" == finding.found


@pytest.mark.parametrize("num_cores", [1, 2, 16])
def test_the_pair_is_a_case_and_its_twin(num_cores):
    """On at most two cores' worth of replicas."""
    trials = pair.make_plan(num_cores).trials

    assert [Control.NONE, Control.TWIN] == [trial.spec.control for trial in trials]
    assert {min(num_cores, 2)} == {trial.spec.num_replicas for trial in trials}


def test_the_prediction_on_the_documented_machine():
    """Times of a shared machine, started side by side: half a width of 4 %."""
    found = pair.predict(deviation=0.106, turn_sec=0.4, start_sec=8.0)
    spread = math.sqrt(2 * 0.02**2 + 0.106**2 / found.num_rounds)

    assert found.num_rounds == pytest.approx(23, abs=2)
    assert found.half_width == pytest.approx(0.042, abs=0.003)
    assert found.half_width == power.median_half_width(spread, defaults.GENERATIONS)


def test_more_noise_gives_a_wider_interval():
    """And slower turns do, since there are fewer of them."""
    known = {"deviation": 0.1, "turn_sec": 0.4, "start_sec": 13.0}
    usual = pair.predict(**known)

    assert usual.half_width < pair.predict(**known | {"deviation": 0.2}).half_width
    assert usual.half_width < pair.predict(**known | {"turn_sec": 1.0}).half_width
    assert 1 == pair.predict(**known | {"start_sec": 100.0}).num_rounds


@pytest.mark.parametrize(
    ("arguments", "num_measures"), [((), 2), (("--relay=0",), 1), (("--relay=45",), 2)]
)
def test_the_relay_can_be_left_out(harness, monkeypatch, arguments, num_measures):
    """It is part of a full check."""
    given = []

    def look(measures):
        given.extend(measures)
        return []

    monkeypatch.setattr(diagnose, "diagnose", look)
    code, _, _ = harness("doctor", *arguments)

    assert exit_codes.OK == code
    assert num_measures == len(given)


def test_too_short_a_relay_is_refused(harness):
    """The processes would not have started."""
    code, out, err = harness("doctor", "--relay", "20")

    assert exit_codes.USAGE == code
    assert "" == out
    assert re.fullmatch(
        r"error: --relay 20 is too short, must be at least 30 s since starting its"
        r" processes takes 15 s or more; 0 leaves it out\n",
        err,
    )


@pytest.mark.processes
def test_wide_intervals_are_a_caution(settings, monkeypatch):
    """A sweep would still be correct, but say little."""
    predict = pair.predict
    monkeypatch.setattr(
        pair,
        "predict",
        lambda *args: dataclasses.replace(predict(*args), half_width=0.2),
    )
    finding = measure(settings)

    assert "caution" == finding.level
    assert "+-22.1 %" in finding.found
    assert "--minutes, --target" in finding.advice
