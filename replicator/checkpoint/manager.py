"""CheckpointManager: saves and restores training on any backend.

TensorFlow's own ``tf.train.CheckpointManager`` writes the files, so plain
``tf.train.Checkpoint`` can load their weights. In addition they contain the copies of
replica-local variables, the inputs' position, and the metadata.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.checkpoint import division, files, position
from replicator.checkpoint import inventory as inventory_lib
from replicator.checkpoint.inventory import Inventory, Payload, decode, encode
from replicator.core.validation import INT64_MAX, format_value, is_integer, path_of
from replicator.errors import CheckpointError, CheckpointMismatchError
from replicator.inputs.iterator import InputIterator
from replicator.optimizer.wrapper import ReplicatedOptimizer

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from replicator.checkpoint.division import CheckpointedBackend
    from replicator.checkpoint.files import Metadata
    from replicator.variables.table import LocalState

_METADATA = "replicator_metadata"
_WORKERS = "replicator_workers"
_EXTRA = "replicator_extra"
_STATE = ".ATTRIBUTES/py_state"
_RESERVED = {_METADATA, _WORKERS, _EXTRA, "save_counter", "root"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RestoredCheckpoint:
    """The result of ``restore``.

    Attributes:
      path: Prefix of the checkpoint's files.
      step: Training step at which it was saved.
      backend: Backend that saved it.
      num_replicas: Replicas that saved it.
      num_variables: Variables that were set.
      local_state: Description of how replica-local state was restored.
      input_position: Description of how the inputs' position was restored; empty
        without inputs.
    """

    path: str
    step: int
    backend: str
    num_replicas: int
    num_variables: int
    local_state: str
    input_position: str


class _Text(tf.train.experimental.PythonState):
    """A string in a checkpoint."""

    def __init__(self) -> None:
        self.value = b""

    def serialize(self) -> bytes:
        return self.value

    def deserialize(self, string_value: bytes) -> None:
        self.value = string_value


class CheckpointManager:
    """Saves and restores training state; see ``Replicator.make_checkpoint_manager``.

    Every worker of a job calls ``save`` and ``restore`` at the same step; the chief
    writes. A save is complete once the file ``checkpoint`` names it, which is written
    last: after an interrupted save, the previous checkpoint is still the latest one.
    Files are numbered by saves and never overwritten.

    Attributes:
      directory: Directory of the checkpoints.
    """

    def __init__(
        self,
        repl: CheckpointedBackend,
        directory: str | os.PathLike[str],
        trackables: Mapping[str, Any],
        *,
        max_to_keep: int | None,
        inputs: InputIterator | None,
    ) -> None:
        _check_arguments(trackables, max_to_keep, inputs)
        self.directory = path_of(directory, "make_checkpoint_manager(directory)")
        self._repl = repl
        self._trackables = dict(trackables)
        self._max_to_keep = max_to_keep
        self._inputs = inputs
        self._metadata = _Text()
        self._workers = [_Text() for _ in range(repl.num_programs)]
        # Raises now, rather than at the first save.
        for optimizer in Inventory(trackables).optimizers.values():
            if isinstance(optimizer, ReplicatedOptimizer):
                optimizer.check_owner(repl.replicator_id)
        if inputs is not None:
            inputs.check_owner(repl.replicator_id)

    @property
    def latest_checkpoint(self) -> str | None:
        """Prefix of the last complete checkpoint, or None."""
        return files.latest(self.directory)

    @property
    def checkpoints(self) -> list[str]:
        """Prefixes of all complete checkpoints, oldest first."""
        return files.complete(self.directory)

    def save(self, step: int | None = None) -> str:
        """Writes a checkpoint.

        Args:
          step: Training step to record; None takes the ``iterations`` of the
            optimizer.

        Returns:
          The prefix of its files.

        Raises:
          CheckpointError: It could not be written; the previous one stays the latest.
          ClusterError: A process that holds variables was lost.
          ValueError: ``step`` is None and there is not exactly one optimizer.
        """
        step = self._current_step() if step is None else _check_step(step)
        inventory = Inventory(self._trackables)
        # Distributed state is gathered while it is written.
        with self._repl.consolidated_state(list(inventory.variables.values())):
            local = division.collect_local_state(self._repl, inventory)
            own = encode(self._payload(local))
            for text, payload in zip(
                self._workers,
                self._repl.gather_bytes(own),
                strict=True,
            ):
                text.value = payload
            positions = self._repl.gather_bytes(self._position())
            metadata = files.describe_checkpoint(
                self._repl,
                step=step,
                variables=inventory.facts(),
                optimizers=inventory_lib.optimizers(inventory),
                kinds={path: state.kind.value for path, state in local.items()},
                positions=tuple(
                    position.Position(**json.loads(text)) for text in positions if text
                ),
            )
            self._metadata.value = files.to_json(metadata).encode()
            outcome = self._write(inventory) if self._repl.is_chief else ""
        # Also a barrier: no worker proceeds before the checkpoint is complete.
        failure = self._repl.gather_bytes(outcome.encode())[0].decode()
        if failure:
            self._repl.check_alive()
            raise CheckpointError(failure)
        return self._require_latest()

    def restore(
        self, path: str | os.PathLike[str] | None = None
    ) -> RestoredCheckpoint | None:
        """Restores everything that a checkpoint contains.

        Weights, optimizer state and other variables get their saved values. If the
        number of replicas is the same, each replica gets its own replica-local state
        (batch-norm statistics, random generators) back. Otherwise all replicas start
        from the mean of the saved ones (or as ``aggregation`` of the variable says),
        and random states are derived again from that of replica 0. Inputs continue
        exactly at the saved position if the numbers of pipelines, replicas and workers
        are the same; otherwise the steps that were read before are read again and
        dropped, which takes as long as reading them. No example of the epoch is then
        repeated or lost, provided that the pipelines yield the same order in every
        process (seeded shuffles); what shuffles or filters after sharding or batching
        is refused.

        Args:
          path: Prefix of a checkpoint's files; None takes the latest.

        Returns:
          What was restored; None if ``path`` is None and there is no checkpoint yet.

        Raises:
          CheckpointMismatchError: The checkpoint is of another model, or its inputs
            are incompatible; nothing was changed.
          CheckpointError: The files are missing or damaged.
          TypeError: ``path`` is not a path.
        """
        if path is None:
            if self.latest_checkpoint is None:
                return None
            path = self._require_latest()
        path = path_of(path, "restore(path)")
        reader = files.open_reader(path)
        metadata = self.read_metadata(path)
        payloads = [
            decode(reader.get_tensor(f"{_WORKERS}/{worker}/{_STATE}"))
            for worker in range(metadata.num_workers)
        ]
        self._check_inputs(metadata, path)
        inventory = inventory_lib.require(self._repl, self._trackables, metadata, path)
        checkpoint = tf.train.Checkpoint(**inventory.objects, **_extra(inventory))
        try:
            checkpoint.read(path).assert_existing_objects_matched()
        except (tf.errors.OpError, OSError, LookupError) as error:
            raise files.unreadable(path, error) from error
        restored = division.restore_local_state(
            self._repl, inventory, metadata, payloads
        )
        self._repl.restored(list(inventory.variables.values()))
        return RestoredCheckpoint(
            path=path,
            step=metadata.step,
            backend=metadata.backend,
            num_replicas=metadata.num_replicas,
            num_variables=len(inventory.variables),
            local_state=restored,
            input_position=self._restore_position(metadata, payloads),
        )

    def read_metadata(self, path: str | os.PathLike[str] | None = None) -> Metadata:
        """Reads the metadata of a checkpoint; restores nothing.

        Args:
          path: Prefix of a checkpoint's files; None takes the latest.

        Raises:
          CheckpointError: There is no such checkpoint, or a manager did not write it.
          TypeError: ``path`` is not a path.
        """
        path = path_of(
            self._require_latest() if path is None else path, "read_metadata(path)"
        )
        reader = files.open_reader(path)
        key = f"{_METADATA}/{_STATE}"
        if not reader.has_tensor(key):
            raise CheckpointError(
                f"{path!r} was not written by make_checkpoint_manager(): it has no "
                "metadata; load its weights with tf.train.Checkpoint(model=...)"
            )
        return files.from_json(reader.get_tensor(key).decode(), path)

    def _require_latest(self) -> str:
        path = self.latest_checkpoint
        if path is None:
            raise CheckpointError(
                f"directory {self.directory!r} contains no checkpoint; call save() "
                "first, or pass the directory of the earlier run"
            )
        return path

    def _current_step(self) -> int:
        found = Inventory(self._trackables).optimizers
        if len(found) != 1:
            names = ", ".join(sorted(found) or map(repr, self._trackables))
            raise ValueError(
                f"save() needs a step: by default it is that of the optimizer, but the "
                f"saved objects have {len(found)} optimizers ({names}); pass "
                "save(step)"
            )
        (optimizer,) = found.values()
        return int(tf.convert_to_tensor(optimizer.iterations))

    def _payload(self, local: Mapping[str, LocalState]) -> Payload:
        values = {path: state.values for path, state in local.items()}
        if self._inputs is None:
            return Payload(local=values)
        iterators, reason = position.serialize(self._inputs)
        return Payload(local=values, iterators=iterators, reason=reason)

    def _position(self) -> bytes:
        if self._inputs is None:
            return b""
        return json.dumps(dataclasses.asdict(self._here())).encode()

    def _here(self) -> position.Position:
        assert self._inputs is not None
        repl = self._repl
        return position.current(self._inputs, repl.num_replicas, repl.num_workers)

    def _write(self, inventory: Inventory) -> str:
        """Writes the files; returns why it failed, or an empty string."""
        checkpoint = tf.train.Checkpoint(
            **inventory.objects,
            **_extra(inventory),
            **{_METADATA: self._metadata, _WORKERS: self._workers},
        )
        return files.write(checkpoint, self.directory, self._max_to_keep)

    def _check_inputs(self, metadata: Metadata, path: str) -> None:
        if self._inputs is not None and not metadata.positions:
            raise CheckpointMismatchError(
                f"checkpoint {path!r} has no input position, because it was saved "
                "without inputs; create the manager with inputs=None to restart the "
                "data"
            )
        if self._inputs is not None:
            saved = metadata.positions[self._worker_before(metadata)]
            position.steps_here(saved, self._here(), division.of(self._inputs))

    def _restore_position(self, metadata: Metadata, payloads: list[Payload]) -> str:
        if self._inputs is None:
            return ""
        worker = self._worker_before(metadata)
        states, reason = payloads[worker].iterators, payloads[worker].reason
        saved = metadata.positions[worker]
        return position.restore(self._inputs, saved, states, reason, self._here())

    def _worker_before(self, metadata: Metadata) -> int:
        # A worker more than there were continues where any of them was: all had read as
        # many steps. Its iterators' states are then not used, as the layout differs.
        return min(self._repl.worker_id, metadata.num_workers - 1)


def _check_arguments(
    trackables: Mapping[str, Any], max_to_keep: Any, inputs: Any
) -> None:
    if not trackables:
        raise ValueError(
            "make_checkpoint_manager() got nothing to save; pass for example "
            "model=model, optimizer=optimizer"
        )
    taken = sorted(_RESERVED & trackables.keys())
    if taken:
        raise ValueError(
            f"{taken[0]!r} is reserved: checkpoints use this name themselves; choose "
            "another"
        )
    if max_to_keep is not None and not is_integer(max_to_keep, least=1):
        raise ValueError(
            f"max_to_keep {format_value(max_to_keep)} must be an integer of at least "
            "1, or None to keep all"
        )
    if inputs is not None and not isinstance(inputs, InputIterator):
        raise TypeError(
            f"make_checkpoint_manager(inputs) takes what make_input_iterator returned, "
            f"or None, not a {type(inputs).__name__!r}"
        )


def _check_step(step: Any) -> int:
    if not is_integer(step, least=0, most=INT64_MAX):
        raise ValueError(
            f"step {format_value(step)} must be an integer of at least 0, or None for "
            "the step of the optimizer"
        )
    return step


def _extra(inventory: Inventory) -> dict[str, Any]:
    return {_EXTRA: inventory.extra} if inventory.extra else {}
