"""What doctor measures: rates of cores alone and together, and a pair of like cases."""

import dataclasses
import itertools
import math
import os
import re

import pytest

from harness.cli import exit_codes
from harness.doctor import canary_worker, diagnose, pair
from harness.errors import DoctorError, DoesNotFitError
from harness.planning import defaults
from results.judging import power
from results.records.models import Control

MIB = 2**20


class _Cores:
    """Cores whose rate falls when several are busy; some are noisy."""

    def __init__(self, *, together, noise=0.0):
        self.calls = []
        self._together = together
        self._noise = noise

    def ask(self, cores, kind):
        self.calls.append((tuple(cores), kind))
        factor = self._together[kind] if len(cores) > 1 else 1.0
        if len(cores) == 1 and len(self.calls) % 4 < 2:
            factor *= 1 + self._noise
        return [1e9 * (core + 1) * factor for core in cores]


def _ceilings(**fields):
    cores = _Cores(**fields)
    return diagnose.measure_ceilings((0, 3), cores.ask, 6), cores


def test_the_ceiling_is_of_the_same_core():
    """Cores of different rates do not shift it; each of them runs alone in turn."""
    found, cores = _ceilings(together={"compute": 0.95, "memory": 0.6})
    alone = [chosen for chosen, _ in cores.calls if len(chosen) == 1]

    assert ["compute", "memory"] == [ceiling.kind for ceiling in found]
    assert [0.95, 0.6] == pytest.approx([ceiling.ratio.value for ceiling in found])
    assert [6, 6] == [ceiling.ratio.n for ceiling in found]
    assert 6 == alone.count((0,)) == alone.count((3,))


def test_rounds_alternate_between_both_orders():
    """So that a core that warms up cancels."""
    _, cores = _ceilings(together={"compute": 1, "memory": 1})
    sizes = [len(chosen) for chosen, kind in cores.calls if kind == "compute"]

    assert [1, 2, 2, 1] * 3 == sizes


@pytest.mark.parametrize(
    ("together", "level", "found", "advice"),
    [
        (
            (0.95, 0.6),
            ("ok", "ok"),
            (
                r"0\.95 \[0\.95, 0\.95\] of the rate alone on 2 cores at once, n = 6",
                r"0\.60 \[0\.60, 0\.60\] .*, n = 6; \d\.\d GB/s alone",
            ),
            ("", ""),
        ),
        (
            (0.8, 0.4),
            ("caution", "caution"),
            (r"0\.80 .*", r"0\.40 .*"),
            (
                "cores share units or clock: compare efficiency with a solo run, not 1",
                "cores share bandwidth: compare efficiency with a solo run, not 1",
            ),
        ),
    ],
)
def test_a_low_ceiling_is_a_caution(monkeypatch, together, level, found, advice):
    """Below 0.9 for compute, below 0.5 for memory."""
    monkeypatch.setattr(diagnose, "_MOST_SPREAD", 9.0)  # the fake cores differ
    kinds = dict(zip(("compute", "memory"), together, strict=True))
    findings = [diagnose.check_ceiling(c) for c in _ceilings(together=kinds)[0]]

    assert level == tuple(finding.level for finding in findings)
    for finding, text, what in zip(findings, found, advice, strict=True):
        assert re.fullmatch(text, finding.found)
        assert re.fullmatch(what, finding.advice)


def test_a_rate_that_varies_is_a_caution():
    """The machine is not steady, whatever the ceiling is."""
    cores = _Cores(together={"compute": 1, "memory": 1}, noise=0.5)
    ceilings = diagnose.measure_ceilings((0, 0), cores.ask, 6)
    finding = diagnose.check_ceiling(ceilings[0])

    assert "caution" == finding.level
    assert re.search(r"; the rate alone varied by \d+ %$", finding.found)
    assert re.fullmatch(r"find what disturbs it .* run doctor again", finding.advice)


def test_one_core_has_nothing_to_share():
    (finding,) = diagnose.check_canaries((0,))

    assert ("ok", "one core only: nothing to share") == (finding.level, finding.found)


@pytest.mark.parametrize(
    ("cache", "available_mib", "expected"),
    [
        ("512K", 2000, 32 * MIB),
        ("49152K", 2000, 64 * MIB),
        ("49152K", 1500, None),
        (None, None, 32 * MIB),
    ],
)
def test_arrays_are_larger_than_the_caches(fake_root, cache, available_mib, expected):
    """Three together four times the largest; all cores use a quarter of memory."""
    if cache is not None:
        folder = "sys/devices/system/cpu/cpu0/cache"
        fake_root.write(f"{folder}/index0/size", "32K\n")
        fake_root.write(f"{folder}/index3/size", cache + "\n")
    if available_mib is not None:
        text = f"MemAvailable: {available_mib * 1024} kB\n"
        fake_root.write("proc/meminfo", text)

    assert expected == diagnose.array_bytes((0, 1), fake_root.path)


def test_too_little_memory_for_the_arrays_is_said(fake_root):
    """The ceilings are not measured with arrays that fit into a cache."""
    fake_root.write("proc/meminfo", "MemAvailable: 1024 kB\n")
    (finding,) = diagnose.check_canaries((0, 1), fake_root.path)

    assert "caution" == finding.level
    assert re.fullmatch("not measured: arrays larger than .* memory", finding.found)
    assert re.fullmatch(".*or give doctor fewer cores with taskset", finding.advice)


def test_the_kernels_do_their_work():
    """The triad computes ``a = 0.5 * c + b``; a rate is work per second."""
    kernels = canary_worker.make_kernels(8 * 64)
    compute, work = kernels[canary_worker.COMPUTE]

    assert {"compute", "memory"} == set(kernels)
    assert 5 * 8 * 64 == kernels[canary_worker.MEMORY][1]
    assert 0 < canary_worker.rate(compute, work, 0.01) < 1e9


@pytest.mark.processes
def test_processes_answer_and_end():
    core = min(os.sched_getaffinity(0))
    with diagnose.canary_processes((core,), 32 * 1024) as ask:
        (products_per_sec,) = ask((core,), "compute")
        (bytes_per_sec,) = ask((core,), "memory")

    assert products_per_sec > 1
    assert bytes_per_sec > 1e6


@pytest.mark.processes
def test_a_canary_that_ends_early_is_an_error():
    """As one that the kernel ends for lack of memory."""
    with (
        pytest.raises(
            DoctorError,
            match=r"^a canary process ended with exit code 1 before it .* again$",
        ),
        diagnose.canary_processes((0,), -8),
    ):
        pass


SECONDS = 0.1
"""The fake worker starts at once; at least five rounds are taken."""


def measure(settings):
    (finding,) = pair.check_pair([0, 1], SECONDS, settings)
    return finding


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
    reasons = itertools.cycle(["others were busy", ""])
    finding = measure(
        dataclasses.replace(settings, void_reason=lambda *_: next(reasons))
    )

    assert "bad" == finding.level
    assert re.fullmatch(
        r"\d+ of \d+ turns are void: in \d+ of them others were busy", finding.found
    )
    assert diagnose.is_unfit([finding])


@pytest.mark.processes
def test_a_pair_that_fails_says_why(settings, monkeypatch):
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:fail")
    finding = measure(settings)

    assert "caution" == finding.level
    assert "not measured: the reducer is out of paper" == finding.found
    assert "sweep --workload resnet50 --preset smoke" in finding.advice


def test_a_pair_that_does_not_fit_says_so(settings, monkeypatch):
    def refuse(*_args):
        raise DoesNotFitError("2 processes do not fit into memory at once")

    monkeypatch.setattr(pair, "run_generation", refuse)
    finding = measure(settings)

    assert "caution" == finding.level
    assert "not measured: 2 processes do not fit into memory at once" == finding.found


@pytest.mark.parametrize("num_cores", [1, 2, 16])
def test_the_pair_is_a_case_and_its_twin(num_cores):
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
    ("arguments", "num_measures"), [((), 2), (("--relay=0",), 1), (("--relay=45s",), 2)]
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
    code, out, err = harness("doctor", "--relay", "20s")

    assert exit_codes.USAGE == code
    assert "" == out
    assert re.fullmatch(
        r"error: --relay 20s is too short, must be at least 30s since starting its"
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
    assert "--time-budget, --target" in finding.advice
