"""What processes of a cluster say while they run: one line of JSON per message."""

import json
import sys
import time

_POLL_SEC = 0.02


def send(**fields):
    """Writes a message of this process to its output."""
    sys.stdout.write(json.dumps({"time": time.time(), **fields}) + "\n")
    sys.stdout.flush()


def received(cluster, member, *, num_lines_before=0):
    """All messages of a process, after so many lines of its output."""
    text = cluster.output(*member)
    # The last line may still be being written.
    lines = text[: text.rfind("\n") + 1].splitlines()[num_lines_before:]
    return [json.loads(line) for line in lines if line.startswith("{")]


def last(messages, field):
    """The last value of a field, or None."""
    values = [message[field] for message in messages if field in message]
    return values[-1] if values else None


def wait_until(condition, cluster, timeout_sec):
    """Waits for a condition; when the time is over, fails with the outputs."""
    deadline = time.monotonic() + timeout_sec
    while not condition():
        assert time.monotonic() < deadline, cluster.tails()
        time.sleep(_POLL_SEC)
