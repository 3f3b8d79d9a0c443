"""What doctor measures: rates of cores alone and together, and a pair of like cases."""

import dataclasses
import itertools
import os
import re

import pytest

from harness.cli import exit_codes
from harness.doctor import diagnose, pair
from harness.errors import DoctorError, DoesNotFitError
from results.records.models import Control

MIB = 2**20


class Cores:
    """Cores whose rate falls when several are busy; some are noisy."""

    def __init__(self, compute=1.0, memory=1.0, noise=0.0):
        self.calls = []
        self._together = {"compute": compute, "memory": memory}
        self._noise = noise

    def ask(self, cores, kind):
        self.calls.append((tuple(cores), kind))
        factor = self._together[kind] if len(cores) > 1 else 1.0
        if len(cores) == 1 and len(self.calls) % 4 < 2:
            factor *= 1 + self._noise
        return [1e9 * (core + 1) * factor for core in cores]


def test_the_ceiling_is_of_the_same_core():
    """Each core runs alone in turn, in both orders, so that warming up cancels."""
    cores = Cores(compute=0.95, memory=0.6)
    found = diagnose.measure_ceilings((0, 3), cores.ask, 6)
    alone = [chosen for chosen, _ in cores.calls if len(chosen) == 1]
    sizes = [len(chosen) for chosen, kind in cores.calls if kind == "compute"]

    assert ["compute", "memory"] == [ceiling.kind for ceiling in found]
    assert [0.95, 0.6] == pytest.approx([ceiling.ratio.value for ceiling in found])
    assert [6, 6] == [ceiling.ratio.n for ceiling in found]
    assert 6 == alone.count((0,)) == alone.count((3,))
    assert [1, 2, 2, 1] * 3 == sizes


CEILINGS = [
    (
        Cores(compute=0.95, memory=0.6),
        "ok",
        (
            r"0\.95 \[0\.95, 0\.95\] of the rate alone on 2 cores at once, n = 6",
            r"0\.60 \[0\.60, 0\.60\] .*, n = 6; \d\.\d GB/s alone",
        ),
        ("", ""),
    ),
    (
        Cores(compute=0.8, memory=0.4),
        "caution",
        (r"0\.80 .*", r"0\.40 .*"),
        (
            "cores share units or clock: compare efficiency with a solo run, not 1",
            "cores share bandwidth: compare efficiency with a solo run, not 1",
        ),
    ),
    (
        Cores(noise=0.5),
        "caution",
        (r".*; the rate alone varied by \d+ %",) * 2,
        (r"find what disturbs it .* run doctor again",) * 2,
    ),
]


@pytest.mark.parametrize(("cores", "level", "found", "advice"), CEILINGS)
def test_a_ceiling_is_a_finding(cores, level, found, advice):
    """Low is below 0.9 for compute, below 0.5 for memory."""
    ceilings = diagnose.measure_ceilings((0, 0), cores.ask, 6)
    findings = [diagnose.check_ceiling(ceiling) for ceiling in ceilings]

    assert {level} == {finding.level for finding in findings}
    for finding, text, what in zip(findings, found, advice, strict=True):
        assert re.fullmatch(text, finding.found)
        assert re.fullmatch(what, finding.advice)


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


def test_what_is_not_measured_is_said(fake_root):
    (alone,) = diagnose.check_canaries((0,))
    fake_root.write("proc/meminfo", "MemAvailable: 1024 kB\n")
    (little,) = diagnose.check_canaries((0, 1), fake_root.path)

    assert ("ok", "one core only: nothing to share") == (alone.level, alone.found)
    assert "caution" == little.level
    assert re.fullmatch("not measured: arrays larger than .* memory", little.found)
    assert re.fullmatch(".*or give doctor fewer cores with taskset", little.advice)


@pytest.mark.processes
def test_canaries_answer_and_one_that_ends_early_is_an_error(monkeypatch):
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(diagnose, "TURN_SEC", 0.02)
    with diagnose.canary_processes((core,), 32 * 1024) as ask:
        (products_per_sec,) = ask((core,), "compute")
        (bytes_per_sec,) = ask((core,), "memory")

    assert 1 < products_per_sec < 1e9
    assert bytes_per_sec > 1e6
    message = r"^a canary process ended with exit code 1 before it .* again$"
    with (
        pytest.raises(DoctorError, match=message),
        diagnose.canary_processes((0,), -8),
    ):
        pass


SECONDS = 0.1
"""The fake worker starts at once; at least five rounds are taken."""


def measure(settings):
    (finding,) = pair.check_pair([0, 1], SECONDS, settings)
    return finding


@pytest.mark.usefixtures("forked_trials")
def test_a_quiet_pair_says_what_a_default_sweep_gives(settings, monkeypatch):
    """The fake worker's steps hardly vary; what is assumed is said."""
    judge, judged = pair.judge, []
    monkeypatch.setattr(
        pair, "judge", lambda *facts: judged.append(facts) or judge(*facts)
    )
    finding = measure(settings)

    assert ("A/A pair", "ok") == (finding.check, finding.level)
    assert re.fullmatch(
        r"ratio [01]\.\d{3} \[.*\] in 5 rounds, which vary by 0\.\d %; 0 of 10 blocks"
        r" discarded; in 12 min a ratio of 6 such cases would be known to \+-[345]\.\d "
        r"% \(5 runs of \d+ rounds, 2 % between processes assumed\)",
        finding.found,
    )
    wide = pair.Prediction(num_rounds=9, half_width=0.2)
    monkeypatch.setattr(pair, "predict", lambda *_: wide)
    finding = judge(*judged[0])

    assert "caution" == finding.level
    assert "+-22.1 %" in finding.found
    assert "--time-budget, --target" in finding.advice


@pytest.mark.usefixtures("forked_trials")
def test_a_disturbed_pair_is_bad(settings):
    """More than 30 % of the turns are void: doctor then exits with 6."""
    reasons = itertools.cycle(["others were busy", ""])
    finding = measure(
        dataclasses.replace(settings, void_reason=lambda *_: next(reasons))
    )

    assert "bad" == finding.level
    assert re.fullmatch(
        r"\d+ of \d+ blocks are discarded: in \d+ of them others were busy",
        finding.found,
    )
    assert diagnose.is_unfit([finding])


@pytest.mark.usefixtures("forked_trials")
def test_a_pair_that_is_not_measured_says_why(settings, monkeypatch):
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:fail")
    finding = measure(settings)

    assert "caution" == finding.level
    assert "not measured: the reducer is out of paper" == finding.found
    assert "sweep --workload resnet50 --preset smoke" in finding.advice

    def refuse(*_):
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


def test_noise_and_slow_turns_make_the_predicted_interval_wider():
    """Times of a shared machine, started side by side: half a width of 4 %."""
    known = {"deviation": 0.106, "turn_sec": 0.4, "start_sec": 8.0}
    found = pair.predict(**known)

    assert found.num_rounds == pytest.approx(23, abs=2)
    assert found.half_width == pytest.approx(0.042, abs=0.003)
    assert found.half_width < pair.predict(**known | {"deviation": 0.2}).half_width
    assert found.half_width < pair.predict(**known | {"turn_sec": 1.0}).half_width
    assert 1 == pair.predict(**known | {"start_sec": 100.0}).num_rounds


def test_the_relay_can_be_left_out_and_is_not_too_short(harness, monkeypatch):
    given = []
    monkeypatch.setattr(
        diagnose, "diagnose", lambda measures: given.append(len(measures)) or []
    )
    for arguments in ((), ("--aa-pair=0",), ("--aa-pair=45s",)):
        assert exit_codes.OK == harness("doctor", *arguments)[0]
    assert [2, 1, 2] == given

    code, out, err = harness("doctor", "--aa-pair", "20s")

    assert (exit_codes.USAGE, "") == (code, out)
    assert re.fullmatch(
        r"error: --aa-pair 20s is too short, must be at least 30s since starting its"
        r" processes takes 15 s or more; 0 leaves it out\n",
        err,
    )
