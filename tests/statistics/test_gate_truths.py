"""Gates err no more often than they say, whatever is true of the change."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import gate_truths
from gate_truths import CASES, DEPENDENT, MOST, SLOWER, TRUTHS, shares

from results.judging import paired_gate
from results.statistics.group_sequential import planned_looks

NUM_GATES = 300
SEED = 3


def beyond(share):
    """Three standard errors above a share of so many gates."""
    return share + 3 * (share * (1 - share) / NUM_GATES) ** 0.5


@pytest.mark.parametrize("num_cases", CASES)
@pytest.mark.parametrize("name", TRUTHS)
def test_gates_seldom_err(name, num_cases):
    """They look, or have 5 or 20 generations; dependent ones have their own limits."""
    most = MOST[name in DEPENDENT]
    for number in (None, 5, 20):
        options = {"num_gates": NUM_GATES, "seed": SEED, "number": number}
        for effect in SLOWER:
            passes, _ = shares(name, effect, num_cases, **options)
            assert passes <= beyond(most["pass"]), (number, effect)
        _, regresses = shares(name, 0.0, num_cases, **options)
        assert regresses <= beyond(most["regress"]), number


@pytest.mark.parametrize("num_cases", CASES)
def test_what_errs_seldom_still_decides(num_cases):
    """On normal noise, of a gate that looks."""
    options = {"num_gates": NUM_GATES, "seed": SEED}

    assert shares("normal noise", 0.0, num_cases, **options)[0] > 0.95
    assert shares("normal noise", 0.05, num_cases, **options)[1] > 0.95
    assert shares("normal noise", 0.08, num_cases, **options)[1] > 0.99


def test_pages_have_the_rates_of_their_own_configuration():
    """The worst of the neighbours that were simulated; none at another alpha."""
    rates = paired_gate.of_gate(2, None, 0.05)
    few, many = (paired_gate.of_gate(1, number, 0.05) for number in (7, 100))

    assert rates is not None
    assert few is not None
    assert many is not None
    assert 0.02 < rates.passes <= MOST[False]["pass"]
    assert rates.passes_dependent <= MOST[True]["pass"]
    assert 0 == few.passes < many.passes
    assert paired_gate.of_gate(2, None, 0.01) is None


def test_the_rates_that_ship_are_those_of_the_simulation():
    """A small part, again: rates of the slow fifth, which all pages state."""
    rows = paired_gate.PATH.read_text(encoding="utf-8")
    passes, _ = shares(
        "slow in one generation of five", 0.08, 3, num_gates=2000, seed=SEED
    )

    assert f'"cases": {CASES[1]}' in rows
    assert passes == pytest.approx(
        0.8 ** planned_looks(0.05)[-2], abs=3 * (0.04 / 2000) ** 0.5
    )
    assert not list(gate_truths.broken(list(paired_gate.error_rate_rows()), 4000))
