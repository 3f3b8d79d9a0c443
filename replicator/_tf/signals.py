"""What TensorFlow does to the signals of a process that joins a cluster.

Its coordination service catches SIGTERM, in order to tell all workers of a preemption
that nobody reads here: the signal would end nothing, neither a worker that an engine
cancels nor one whose program has a handler of its own.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Restores what SIGTERM does when the block ends (test_conformance).

    Python lets only the main thread do that; in others nothing is restored.
    """
    try:
        yield
    finally:
        # What the program has set, which TensorFlow does not tell Python of.
        handler = signal.getsignal(signal.SIGTERM)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)
