"""Clocks of workers that meet: what is known of them, and how exactly."""

from __future__ import annotations

import random
import threading

from replicator.engine.run import clocks


def meetings(offsets, num_exchanges, seed=0):
    """Times of calls and returns, by clocks that are apart; nobody returns early."""
    draw = random.Random(seed).expovariate
    found = [[] for _ in offsets]
    true = 0.0
    for _ in range(num_exchanges):
        calls = [true + draw(1000.0) for _ in offsets]
        returns = [max(calls) + draw(1000.0) for _ in offsets]
        for own, offset, called, returned in zip(
            found, offsets, calls, returns, strict=True
        ):
            own.append((called - offset, returned - offset))
        true = max(returns)
    return found


def test_offsets_are_within_their_bounds():
    """Whatever the delays are; more meetings know them better."""
    offsets = [0.0, 12.5, -3.25]
    for seed in range(50):
        few, many = (clocks.limits(meetings(offsets, count, seed)) for count in (1, 20))
        for truth, one, other in zip(offsets, few, many, strict=True):
            assert abs(one.offset_sec - truth) <= one.bound_sec + 1e-9
            assert abs(other.offset_sec - truth) <= other.bound_sec + 1e-9
            assert other.bound_sec <= one.bound_sec
        assert 0 < many[1].bound_sec < 1e-3
        assert (0.0, 0.0) == (many[0].offset_sec, many[0].bound_sec)


def test_workers_compare_their_clocks_by_gathering_bytes():
    """Each gets the clocks of all, in the order of workers."""
    barrier, texts = threading.Barrier(2), [b"", b""]
    found = [None, None]

    def run(worker, now):
        def gather(text):
            texts[worker] = text
            barrier.wait()
            gathered = [*texts]
            barrier.wait()
            return gathered

        found[worker] = clocks.compare(gather, now, 3)

    times = iter(range(100))
    lock = threading.Lock()

    def tick():
        with lock:
            return float(next(times))

    other = threading.Thread(target=run, args=(1, lambda: tick() - 1000.0))
    other.start()
    run(0, tick)
    other.join()

    assert found[0] == found[1]
    assert abs(found[0][1].offset_sec - 1000.0) <= found[0][1].bound_sec
