"""Data that workers exchange between steps: digests of variables, bytes."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any, Protocol

from replicator.errors import DisagreementError, ReplicasOutOfSyncError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Peers(Protocol):
    """The interface to the workers of a job."""

    def exchange(self, what: str, text: str) -> list[str]:
        """Sends a string to all workers and returns theirs, by worker id.

        All workers call this in the same order.

        Args:
          what: Description of the exchange in a few words, for errors.
          text: The string to send.

        Raises:
          DisagreementError: Another worker is at a different exchange.
        """

    def name_of(self, worker_id: int) -> str:
        """Name of a worker in messages."""


def digest(variable: Any) -> str:
    """A digest of a variable's bits."""
    return hashlib.blake2b(variable.numpy().tobytes(), digest_size=16).hexdigest()


def check_same_place(peers: Peers, places: Sequence[str]) -> None:
    """Checks that all workers are at the same exchange.

    Args:
      peers: The workers.
      places: Descriptions of their exchanges, by worker id.

    Raises:
      DisagreementError: They are not; names the first that differs from worker 0.
    """
    for worker, place in enumerate(places):
        if place != places[0]:
            raise DisagreementError(
                f"workers disagree: {peers.name_of(0)} is at {places[0]}, but "
                f"{peers.name_of(worker)} is at {place}; every worker must run the "
                "same program: the same calls of the replicator in the same order"
            )


def gather_bytes(peers: Peers, payload: bytes) -> list[bytes]:
    """Gathers one byte string from every worker; see ``Replicator.gather_bytes``."""
    text = base64.b64encode(payload).decode("ascii")
    texts = peers.exchange("an exchange of bytes (a checkpoint)", text)
    return [base64.b64decode(text) for text in texts]


def compare(peers: Peers, failure: str, digests: Mapping[int, tuple[str, str]]) -> None:
    """Compares mirrored variables over workers.

    Args:
      peers: The workers.
      failure: A difference within this worker, or empty.
      digests: Name and digest of variables, by the number of a variable, which is the
        same on all workers. Variables that one worker has freed are left out.

    Raises:
      ReplicasOutOfSyncError: On all workers, if there is a difference on any.
    """
    text = json.dumps({"failure": failure, "digests": digests})
    answers = [
        json.loads(answer) for answer in peers.exchange("assert_in_sync()", text)
    ]
    for worker, answer in enumerate(answers):
        if answer["failure"]:
            raise ReplicasOutOfSyncError(
                f"on {peers.name_of(worker)}: {answer['failure']}"
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
                f"{peers.name_of(0)} and {peers.name_of(worker)}: "
                f"{', '.join(differing[:5])}; assign variables outside run() on "
                "every worker, with the same values"
            )
