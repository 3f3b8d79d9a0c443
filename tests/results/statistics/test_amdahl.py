"""Amdahl's law: a known one, public runs, studies, and what is refused."""

from __future__ import annotations

import csv
import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from results import errors
from results.figures import amdahl_fits, scaling
from results.records.models import ScalingMode
from results.statistics import amdahl
from results.study.cases import load_study

DATA = Path(__file__).parent / "data" / "mlperf_v0.6_resnet_tpu.csv"
NUMBERS = (1, 2, 4, 8, 16, 32)
NUM_STUDIES = 250
# Binomial noise of NUM_STUDIES studies: three standard errors of 0.95.
TOLERANCE = 3 * (0.95 * 0.05 / NUM_STUDIES) ** 0.5


def _law(n: Any, sigma: float) -> Any:
    return 100.0 * n / (1 + sigma * (n - 1))


def _measured(
    sigma: float, numbers: tuple[int, ...] = NUMBERS, error: float = 0.01
) -> dict[int, list[float]]:
    """Throughputs of the law, with an error that alternates in sign."""
    return {
        n: [_law(n, sigma) * (1 + error * (-1) ** place)]
        for place, n in enumerate(numbers)
    }


def test_a_law_without_noise_is_found_again() -> None:
    """To many digits, and so is the number that was held out."""
    found = amdahl.fit(_measured(0.05, error=0.0))

    assert found.sigma.value == pytest.approx(0.05, rel=1e-4)
    assert found.backtest.num_replicas == 32
    assert found.backtest.predicted.value == pytest.approx(_law(32, 0.05), rel=1e-4)


def test_a_law_of_other_units_of_replicas_is_the_same_law() -> None:
    """Machines of 16 cores each: sigma is per machine."""
    ones = amdahl.fit(_measured(0.05))
    machines = amdahl.fit({16 * n: of for n, of in _measured(0.05).items()})

    assert machines.sigma.value == pytest.approx(ones.sigma.value)


def test_a_fraction_at_its_bound_still_has_an_upper_end() -> None:
    """Zero fits best, but larger values are not excluded."""
    growing = {n: [n ** (1 + 0.01 * place)] for place, n in enumerate(NUMBERS)}
    found = amdahl.fit(growing)

    assert (found.sigma.value, found.sigma.low) == (0.0, 0.0)
    assert 0 < found.sigma.high < 0.01


def test_nothing_beyond_the_largest_measured_number_is_computed() -> None:
    """The curve starts and ends with measurements."""
    curve = amdahl.fit(_measured(0.05)).curve

    assert min(curve.num_replicas) == pytest.approx(1)
    assert max(curve.num_replicas) == pytest.approx(32)
    ends = zip(curve.lows, curve.throughputs, curve.highs, strict=True)
    assert all(low <= value <= high for low, value, high in ends)


def held_by_fit(generator: np.random.Generator, sigma: float) -> dict[str, bool]:
    """Whether what a fit of one study says of a known law is true, by what it says."""
    noise = np.exp(generator.normal(0, 0.02, len(NUMBERS)))
    values = _law(np.array(NUMBERS), sigma) * noise
    found = amdahl.fit({n: [v] for n, v in zip(NUMBERS, values, strict=True)})
    truth = _law(np.array(found.curve.num_replicas), sigma)
    held = {
        name: bool(found.curve.lows[place] <= truth[place] <= found.curve.highs[place])
        for name, place in (("middle", amdahl.NUM_CURVE_POINTS // 2), ("end", -1))
    }
    held["sigma"] = not found.sigma.excludes(sigma)
    held["backtest"] = found.backtest.is_inside
    return held


@pytest.mark.parametrize("sigma", [0.05, pytest.param(0.2, marks=pytest.mark.full)])
def test_coverage_is_as_stated(sigma: float) -> None:
    """Sigma, band in the middle and at its end, held-out point.

    The full run has a second law.
    """
    generator = np.random.default_rng(8)
    held = dict.fromkeys(("sigma", "middle", "end", "backtest"), 0)
    for _ in range(NUM_STUDIES):
        for name, is_held in held_by_fit(generator, sigma).items():
            held[name] += is_held

    for number in held.values():
        assert number / NUM_STUDIES == pytest.approx(0.95, abs=TOLERANCE)


def test_public_runs_are_predicted_from_fewer_cores() -> None:
    """MLPerf v0.6, ResNet-50: 2048 TPU cores from 32 to 1024."""
    runs: dict[int, list[float]] = {}
    with DATA.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cores = int(row["num_cores"])
            runs.setdefault(cores, []).append(float(row["images_per_sec"]))
    found = amdahl.fit(runs)

    assert found.sigma.n == 6
    assert found.sigma.value == pytest.approx(0.0105, abs=0.0005)
    assert found.backtest.measured == pytest.approx(1_199_708, rel=1e-5)
    assert found.backtest.is_inside


@pytest.mark.parametrize("count", [0, 1, 5])
def test_fewer_than_six_numbers_of_replicas_are_an_error(count: int) -> None:
    """How many there are, how many are needed."""
    numbers = NUMBERS[:count]
    listed = ", ".join(map(str, numbers)) or "none"
    with pytest.raises(
        errors.ResultsError,
        match=rf"^measured at {count} numbers of replicas \({listed}\); "
        rf"a fit and its backtest need 6: measure {6 - count} more$",
    ):
        amdahl.fit(_measured(0.05, numbers))


@pytest.mark.parametrize("values", [[], [0.0], [math.nan], [-1.0, 2.0]])
def test_throughputs_must_be_positive_numbers(values: list[float]) -> None:
    """The number of replicas is named."""
    with pytest.raises(
        errors.ResultsError,
        match=r"^throughputs at 4 replicas are \[.*\], must be one or more positive "
        r"and finite numbers; leave out trials that are not ok$",
    ):
        amdahl.fit({**_measured(0.05), 4: values})


@pytest.mark.parametrize(
    ("replicas", "num_cores", "is_fitted"),
    [
        ((1, 2, 4, 8, 16, 32), 64, True),
        ((1, 2), 64, False),
        # More replicas than cores are no evidence on scaling.
        ((1, 2, 4, 8, 16, 32), 16, False),
    ],
)
def test_a_study_of_enough_numbers_of_replicas_is_fitted(
    tmp_path: Path,
    synthetic: Any,
    monkeypatch: pytest.MonkeyPatch,
    replicas: tuple[int, ...],
    num_cores: int,
    is_fitted: bool,
) -> None:
    """Others say in one line what is missing."""
    trial = importlib.import_module("synthetic_trial")
    monkeypatch.setattr(trial, "NUM_CORES", num_cores)
    shape = synthetic.Shape(
        backends=("some",), modes=(ScalingMode.WEAK,), replicas=replicas, repeats=2
    )
    study = load_study(synthetic.make_store(tmp_path, shape))
    (found,) = amdahl_fits.of_points(scaling.points(study))

    assert is_fitted == (found.fit is not None)
    assert is_fitted == ("" == found.refusal)
    assert is_fitted or "a fit and its backtest need 6: measure " in found.refusal
