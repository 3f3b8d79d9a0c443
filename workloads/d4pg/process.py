"""The process of an actor; does not import TensorFlow.

    python -m workloads.d4pg.process < MESSAGE

It exits with its parent, even if the parent was killed. There are two mechanisms,
because each has a gap: the kernel's parent-death signal (lost if the parent died before
the request), and end-of-file on standard input, whose other end only the parent has
open (works only once this process runs).
"""

from __future__ import annotations

import os
import pickle
import sys
import threading

from replicator.cluster.die_with_parent import request_death_signal

# Exit code if a restart would fail in the same way; the last line says why.
BAD_INPUT = 2


def main() -> int:
    """Runs an actor until the parent terminates it."""
    request_death_signal()
    settings, spec, memory, weights_memory, ids = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the parent
    threading.Thread(target=_watch_parent, name="watch-parent", daemon=True).start()
    from .actor import Actor
    from .streams import SharedWeights, StepStreams

    os.nice(settings.config.actor_niceness)
    streams = StepStreams(spec, memory)
    weights = None if weights_memory is None else SharedWeights(*weights_memory)
    try:
        actor = Actor(settings, streams, weights, **ids)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_INPUT
    actor.run()
    return 0


def _watch_parent() -> None:
    # The parent writes nothing more: any return is end-of-file.
    while os.read(0, 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
