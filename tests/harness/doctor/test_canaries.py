"""The contention ceiling: rates of a core alone and when all are busy."""

import os
import re

import pytest

from harness.doctor import canaries, canary_worker
from harness.errors import DoctorError

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
    return canaries.measure_ceilings((0, 3), cores.ask, 6), cores


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
    monkeypatch.setattr(canaries, "_MOST_SPREAD", 9.0)  # the fake cores differ
    kinds = dict(zip(("compute", "memory"), together, strict=True))
    findings = [canaries.check_ceiling(c) for c in _ceilings(together=kinds)[0]]

    assert level == tuple(finding.level for finding in findings)
    for finding, text, what in zip(findings, found, advice, strict=True):
        assert re.fullmatch(text, finding.found)
        assert re.fullmatch(what, finding.advice)


def test_a_rate_that_varies_is_a_caution():
    """The machine is not steady, whatever the ceiling is."""
    cores = _Cores(together={"compute": 1, "memory": 1}, noise=0.5)
    ceilings = canaries.measure_ceilings((0, 0), cores.ask, 6)
    finding = canaries.check_ceiling(ceilings[0])

    assert "caution" == finding.level
    assert re.search(r"; the rate alone varied by \d+ %$", finding.found)
    assert re.fullmatch(r"find what disturbs it .* run doctor again", finding.advice)


def test_one_core_has_nothing_to_share():
    """No process is started."""
    (finding,) = canaries.check_canaries((0,))

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

    assert expected == canaries.array_bytes((0, 1), fake_root.path)


def test_too_little_memory_for_the_arrays_is_said(fake_root):
    """The ceilings are not measured with arrays that fit into a cache."""
    fake_root.write("proc/meminfo", "MemAvailable: 1024 kB\n")
    (finding,) = canaries.check_canaries((0, 1), fake_root.path)

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
    """A real process on one core; none remains."""
    core = min(os.sched_getaffinity(0))
    with canaries.canary_processes((core,), 32 * 1024) as ask:
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
        canaries.canary_processes((0,), -8),
    ):
        pass
