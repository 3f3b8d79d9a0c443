"""A training that saves every few steps, and starts again where it was saved.

    python training.py FOLDER

Worker 0 trains and appends one line per step to FOLDER/steps.jsonl; an error that ends
it goes to FOLDER/error.json. With FOLDER/go it does not stop after the last step.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from replicator import server
from replicator.cluster import environment

NUM_STEPS = 12
STEPS_PER_SAVE = 4
WORKER_TIMEOUT_SEC = 4.0


def main():
    """Serves, or trains."""
    if not environment.detect().config().is_chief:
        server.run([])
    import cases

    import replicator

    folder = Path(sys.argv[1])
    repl = replicator.create(
        "multi_worker_in_graph",
        num_replicas=2,
        connect_timeout_sec=240,
        failure_detection_timeout_sec=WORKER_TIMEOUT_SEC,
    )
    training = cases.Training(repl, "dense", "momentum")
    manager = repl.make_checkpoint_manager(
        folder / "checkpoints",
        inputs=training.inputs,
        model=training.model,
        optimizer=training.optimizer.wrapped,
    )
    manager.restore()
    first = int(training.optimizer.iterations)
    try:
        for step in range(first, 10**9):
            with (folder / "steps.jsonl").open("a", encoding="utf-8") as lines:
                (loss,) = training.run(num_steps=1)
                lines.write(json.dumps([step, loss]) + "\n")
            if step + 1 >= NUM_STEPS:
                continue
            if (step + 1) % STEPS_PER_SAVE == 0:
                manager.save()
            time.sleep(0.05)  # a step in which somebody can be killed
    except replicator.ReplicatorError as error:
        facts = {
            "kind": type(error).__name__,
            "message": str(error),
            "time": time.time(),
        }
        (folder / "error.json").write_text(json.dumps(facts), encoding="utf-8")
        raise


if __name__ == "__main__":
    main()
