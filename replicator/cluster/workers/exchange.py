"""Data that workers exchange between steps: digests of variables, bytes."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any

from replicator.errors import ReplicasOutOfSyncError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replicator.cluster.workers.runtime import WorkerRuntime


def digest(variable: Any) -> str:
    """A digest of a variable's bits."""
    return hashlib.blake2b(variable.numpy().tobytes(), digest_size=16).hexdigest()


def gather_bytes(runtime: WorkerRuntime, payload: bytes) -> list[bytes]:
    """Gathers one byte string from every worker; see ``Replicator.gather_bytes``."""
    text = base64.b64encode(payload).decode("ascii")
    texts = runtime.exchange("an exchange of bytes (a checkpoint)", text)
    return [base64.b64decode(text) for text in texts]


def compare(
    runtime: WorkerRuntime, failure: str, digests: Mapping[int, tuple[str, str]]
) -> None:
    """Compares mirrored variables over workers.

    Args:
      runtime: The workers.
      failure: A difference within this worker, or empty.
      digests: Name and digest of variables, by the number of a variable, which is the
        same on all workers. Variables that one worker has freed are left out.

    Raises:
      ReplicasOutOfSyncError: On all workers, if there is a difference on any.
    """
    text = json.dumps({"failure": failure, "digests": digests})
    answers = [
        json.loads(answer) for answer in runtime.exchange("assert_in_sync()", text)
    ]
    for worker, answer in enumerate(answers):
        if answer["failure"]:
            raise ReplicasOutOfSyncError(
                f"on {runtime.name_of(worker)}: {answer['failure']}"
            )
        others = answer["digests"]
        differing = [
            name
            for number, (name, mine) in answers[0]["digests"].items()
            if number in others and others[number][1] != mine
        ]
        if differing:
            raise ReplicasOutOfSyncError(
                f"{len(differing)} mirrored variables differ between "
                f"{runtime.name_of(0)} and {runtime.name_of(worker)}: "
                f"{', '.join(differing[:5])}; assign variables outside run() on "
                "every worker, with the same values"
            )
