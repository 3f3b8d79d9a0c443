"""Laws of throughput: known parameters, public runs, and what is refused."""

from __future__ import annotations

import csv
import math
import statistics as python_statistics
from pathlib import Path

import pytest

from results import errors
from results.statistics import estimates, karp_flatt, laws
from results.statistics.estimates import Estimate
from results.statistics.law_solution import Interval

DATA = Path(__file__).parent / "data" / "mlperf_v0.6_resnet_tpu.csv"
NUMBERS = (1, 2, 4, 8, 16, 32)


def _usl(n: float, sigma: float, kappa: float, level: float = 100.0) -> float:
    return level * n / (1 + sigma * (n - 1) + kappa * n * (n - 1))


def _measured(
    sigma: float, kappa: float, numbers: tuple[int, ...] = NUMBERS
) -> dict[int, list[float]]:
    """Throughputs of a law, with an error of 1 % that alternates in sign."""
    return {
        n: [_usl(n, sigma, kappa) * (1 + 0.01 * (-1) ** place)]
        for place, n in enumerate(numbers)
    }


@pytest.fixture(scope="module")
def tpu() -> dict[int, list[float]]:
    """Images per second of five public runs at each number of TPU cores."""
    found: dict[int, list[float]] = {}
    with DATA.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(int(row["num_cores"]), []).append(
                float(row["images_per_sec"])
            )
    return found


def test_a_law_without_noise_is_found_again() -> None:
    """Contention and crosstalk of the USL, to many digits."""
    exact = {n: [_usl(n, 0.05, 0.002)] for n in NUMBERS}
    found = laws.fit("usl", exact)

    assert found.sigma.value == pytest.approx(0.05, rel=1e-4)
    assert found.kappa.value == pytest.approx(0.002, rel=1e-4)
    assert found.knee.num_replicas == pytest.approx(math.sqrt(0.95 / 0.002), rel=1e-3)
    assert found.backtest.predicted.value == pytest.approx(
        _usl(32, 0.05, 0.002), rel=1e-4
    )


def test_intervals_hold_the_parameters_and_the_knee() -> None:
    """One per cent of error: sigma, kappa, the knee and the held-out point."""
    found = laws.fit("usl", _measured(0.05, 0.003))

    assert found.sigma.low <= 0.05 <= found.sigma.high
    assert found.kappa.low <= 0.003 <= found.kappa.high
    assert found.knee.low <= math.sqrt(0.95 / 0.003) <= found.knee.high
    assert found.backtest.num_replicas == 32
    assert found.backtest.is_inside


def test_a_law_of_other_units_of_replicas_is_the_same_law() -> None:
    """Machines of 16 cores each: sigma and kappa are per machine."""
    ones = laws.fit("usl", _measured(0.05, 0.003))
    machines = laws.fit(
        "usl", {16 * n: values for n, values in _measured(0.05, 0.003).items()}
    )

    assert machines.kappa.value == pytest.approx(ones.kappa.value)
    assert machines.knee.num_replicas == pytest.approx(16 * ones.knee.num_replicas)


def test_amdahl_has_no_knee_and_no_kappa() -> None:
    """A serial part slows growth and never turns it."""
    found = laws.fit("amdahl", _measured(0.1, 0.0))

    assert found.sigma.value == pytest.approx(0.1, rel=0.1)
    assert found.kappa == Interval(value=0.0, low=0.0, high=0.0)
    assert found.knee.num_replicas is None
    assert found.knee.detail == "none within the measured range"


def test_a_knee_whose_interval_leaves_the_range_has_no_upper_end() -> None:
    """The peak is just inside; nothing beyond the last measurement is stated."""
    found = laws.fit("usl", _measured(0.2, 0.0011))

    assert found.knee.num_replicas is not None
    assert found.knee.high is None
    assert found.knee.detail == "its interval reaches beyond the measured range"


def test_a_kappa_at_its_bound_still_has_an_upper_end() -> None:
    """Zero fits best, but larger values are not excluded."""
    found = laws.fit("usl", _measured(0.1, 0.0))

    assert found.kappa.low == 0.0
    assert 0 < found.kappa.high < 0.01


@pytest.mark.parametrize("law", ["amdahl", "usl"])
def test_nothing_beyond_the_largest_measured_number_is_computed(law: str) -> None:
    """The curve starts and ends with measurements."""
    curve = laws.fit(law, _measured(0.05, 0.002)).curve

    assert min(curve.num_replicas) == pytest.approx(1)
    assert max(curve.num_replicas) == pytest.approx(32)
    assert all(
        low <= value <= high
        for low, value, high in zip(
            curve.lows, curve.throughputs, curve.highs, strict=True
        )
    )


@pytest.mark.parametrize("count", [0, 1, 5])
def test_fewer_than_six_numbers_of_replicas_are_an_error(count: int) -> None:
    """How many there are, how many are needed."""
    numbers = NUMBERS[:count]
    listed = ", ".join(map(str, numbers)) or "none"
    with pytest.raises(
        errors.ResultsError,
        match=rf"^a law was requested from {count} numbers of replicas \({listed}\); "
        rf"a fit and its backtest need 6: measure {6 - count} more$",
    ):
        laws.fit("usl", _measured(0.05, 0.002, numbers))


def test_an_unknown_law_is_an_error() -> None:
    """The laws are listed."""
    with pytest.raises(
        errors.ResultsError, match=r"^law 'gustafson' is not one of amdahl, usl$"
    ):
        laws.fit("gustafson", _measured(0.05, 0.002))


@pytest.mark.parametrize("values", [[], [0.0], [math.nan], [-1.0, 2.0]])
def test_throughputs_must_be_positive_numbers(values: list[float]) -> None:
    """The number of replicas is named."""
    with pytest.raises(
        errors.ResultsError,
        match=r"^throughputs at 4 replicas are \[.*\], must be one or more positive "
        r"and finite numbers; leave out trials that are not ok$",
    ):
        laws.fit("usl", {**_measured(0.05, 0.002), 4: values})


def _speedup(value: float, low: float | None, high: float | None) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=3, unit="", method="")


def test_karp_flatt_is_the_serial_fraction_of_amdahls_law() -> None:
    """Ends are swapped: the largest speedup has the smallest fraction."""
    found = karp_flatt.serial_fraction(
        _speedup(*(_usl(8, e, 0.0, 1.0) for e in (0.05, 0.06, 0.04))), 8
    )

    assert found.value == pytest.approx(0.05)
    assert found.low == pytest.approx(0.04)
    assert found.high == pytest.approx(0.06)


def test_a_superlinear_speedup_has_a_negative_fraction() -> None:
    """It is shown as it is; nothing is cut off."""
    assert karp_flatt.serial_fraction(_speedup(2.2, None, None), 2) == Interval(
        value=pytest.approx(-1 / 11), low=None, high=None
    )


def test_the_baseline_has_no_serial_fraction() -> None:
    """It is what others are compared with."""
    with pytest.raises(
        errors.ResultsError,
        match=r"^the Karp-Flatt serial fraction was requested at 2 replicas with a "
        r"baseline of 2; it compares more replicas with fewer, so the baseline has "
        r"none$",
    ):
        karp_flatt.serial_fraction(_speedup(2.0, 1.9, 2.1), 2, baseline_num_replicas=2)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ((0.3, 0.25, 0.35), r"grows with the replicas: more than a serial part"),
        ((0.05, 0.01, 0.08), r"falls with the replicas: no fixed serial part"),
        ((0.12, 0.05, 0.2), r"overlap: no trend"),
        ((0.12, None, None), r"without intervals no trend"),
    ],
)
def test_the_trend_of_serial_fractions_is_stated_in_words(
    last: tuple[float, float | None, float | None], expected: str
) -> None:
    """Only where the intervals at both ends do not overlap."""
    value, low, high = last
    fractions = {
        2: Interval(value=0.1, low=0.09, high=0.11),
        8: Interval(value=value, low=low, high=high),
    }

    assert expected in karp_flatt.trend(fractions)
    assert karp_flatt.trend({2: fractions[2]}).startswith("one number")


def test_public_runs_have_their_published_serial_fractions(tpu) -> None:
    """MLPerf v0.6, ResNet-50, 256 cores and more: it falls, so Amdahl does not hold."""
    median = {n: python_statistics.median(values) for n, values in tpu.items()}
    expected = {512: 0.164, 1024: 0.110, 2048: 0.084}
    found = {
        n: karp_flatt.serial_fraction(
            _speedup(256 * median[n] / median[256], None, None),
            n,
            baseline_num_replicas=256,
        )
        for n in expected
    }

    assert {n: round(e.value, 3) for n, e in found.items()} == expected


def test_intervals_of_public_runs_hold_the_published_serial_fractions(tpu) -> None:
    """Five runs each: those of 256 cores are the noisiest, so the ends are wide."""
    for n, expected in {512: 0.164, 1024: 0.110, 2048: 0.084}.items():
        ratio = estimates.ratio(
            dict(enumerate(tpu[n])),
            {-1 - run: value for run, value in enumerate(tpu[256])},
        )
        found = karp_flatt.serial_fraction(
            ratio.scaled(256), n, baseline_num_replicas=256
        )

        assert found.low < expected < found.high


@pytest.mark.parametrize("law", ["amdahl", "usl"])
def test_public_runs_are_predicted_from_fewer_cores(tpu, law: str) -> None:
    """2048 cores from 32 to 1024: inside, and no peak within the range."""
    found = laws.fit(law, tpu)

    assert found.num_numbers == 6
    assert found.sigma.value == pytest.approx(0.0105, abs=0.0005)
    assert found.kappa.value == 0.0
    assert found.knee.num_replicas is None
    assert found.backtest.measured == pytest.approx(1_199_708, rel=1e-5)
    assert found.backtest.is_inside
