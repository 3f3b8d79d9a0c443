"""The process of an actor; does not import TensorFlow.

    python -m workloads.d4pg.acting.process '{"settings": ..., "streams": ...}'

It exits with its parent, even if the parent was killed. There are two mechanisms,
because each has a gap: the kernel's parent-death signal (lost if the parent died before
the request), and end-of-file on standard input, whose other end only the parent has
open (works only once this process runs).
"""

from __future__ import annotations

import json
import os
import sys
import threading

from replicator.cluster.die_with_parent import request_death_signal

# Exit code if a restart would fail in the same way; the last line says why.
BAD_INPUT = 2


def main() -> int:
    """Runs an actor until the parent terminates it."""
    _die_with_parent()
    message = json.loads(sys.argv[1])
    from workloads.d4pg.acting.actor import Actor
    from workloads.d4pg.acting.remote import SharedWeights
    from workloads.d4pg.acting.settings import ActorSettings
    from workloads.d4pg.replay.streams import StepStreams, StreamsSpec

    settings = ActorSettings.from_json(message["settings"])
    os.nice(settings.niceness)
    streams = StepStreams(
        StreamsSpec.from_json(message["streams"]), message["streams_descriptor"]
    )
    weights = None
    if message["num_floats"]:
        weights = SharedWeights(message["num_floats"], message["weights_descriptor"])
    try:
        actor = Actor(
            settings,
            streams,
            weights,
            actor_id=message["actor_id"],
            num_restarts=message["num_restarts"],
        )
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_INPUT
    actor.run()
    return 0


def _die_with_parent() -> None:
    request_death_signal()

    def wait() -> None:
        # The parent writes nothing: any return is end-of-file.
        while os.read(0, 1):
            pass
        os._exit(0)

    threading.Thread(target=wait, name="watch-parent", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
