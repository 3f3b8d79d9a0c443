"""What makes a reader doubt the numbers that a program of the user's prints."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from reports.words import evidence
from results.records.models import Evidence

STEPS = 10


def case(
    replicas: int,
    *,
    step_sec: float = 0.1,
    said_sec: float = 0.1,
    number: int = STEPS,
    busy: float | None = None,
    of: Evidence = Evidence.WINDOW,
    **fields: Any,
) -> Any:
    """Returns a case: its steps take one time, and its numbers say another."""
    rank = SimpleNamespace(window_start_ns=0, window_end_ns=STEPS * step_sec * 1e9)
    readings = SimpleNamespace(evidence=of, busy_cores=busy, num_readings=number)
    result = SimpleNamespace(
        readings=readings, ranks=[rank], window_sec=STEPS * said_sec
    )
    spec = SimpleNamespace(num_replicas=replicas, device="cpu")
    return SimpleNamespace(
        **{"spec": spec, "is_oversubscribed": False} | fields,
        ok_entries=[SimpleNamespace(result=result)] * 3,
    )


@pytest.mark.parametrize("said_sec", [0.1, 0.01, 0.2])
def test_a_rate_that_can_be_is_not_doubted(said_sec: float) -> None:
    """Several batches between two numbers, and a mean over some of them, can be."""
    assert [] == list(evidence._wrong_unit(case(1, said_sec=said_sec)))


def test_a_rate_in_another_unit_is_said() -> None:
    """Of thousands, or milliseconds read as seconds: a batch would take longer."""
    (said,) = evidence._wrong_unit(case(1, said_sec=100.0))

    assert said.startswith("By its numbers a global batch takes 1\u202f000 times the ")
    assert "another unit, such as thousands or milliseconds?" in said
    assert [] == list(evidence._wrong_unit(case(1, said_sec=100, of=Evidence.ROWS)))


def test_a_program_that_ignores_its_replicas_is_doubted() -> None:
    """It keeps as many cores busy; not where there are no more, or none is busy."""
    (said,) = evidence._suspicions(case(2, busy=1.02), case(1, busy=1.0))

    assert "kept 1.0 cores busy, with 1 replica 1.0: does it use the replicas" in said
    for two in (
        case(2, busy=1.9),
        case(2, busy=1.0, is_oversubscribed=True),
        case(2, busy=0.1),
        case(2, busy=1.0, spec=SimpleNamespace(num_replicas=2, device="gpu")),
    ):
        assert [] == list(evidence._suspicions(two, case(1, busy=1.0)))


def test_the_rate_of_one_replica_is_noticed() -> None:
    """With two replicas it stands for half of the time between two numbers."""
    one, two = case(1), case(2, said_sec=0.2)

    (said,) = evidence._suspicions(two, one)
    assert "accounts for 2.0 times as much" in said
    assert said.endswith("Then use throughput_per_replica.")
    assert [] == list(evidence._suspicions(case(2), one))


def test_processes_that_all_print_are_noticed() -> None:
    """The rate of all, or each its own: twice as often, and each stands for longer."""
    one = case(1)

    (said,) = evidence._suspicions(case(2, said_sec=0.2, number=2 * STEPS), one)
    assert "printed 2 times as many numbers as with 1 replica: do all its pro" in said
    (said,) = evidence._suspicions(case(2, said_sec=0.4, number=2 * STEPS), one)
    assert "each process print its own? Then the throughput is 2 times what" in said
    assert [] == list(evidence._suspicions(case(2, said_sec=0.3), one))
