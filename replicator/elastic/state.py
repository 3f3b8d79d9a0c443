"""ElasticState: commits, and the position in the training loop, of an elastic job.

A commit is a checkpoint in the memory of each host (a folder of ``/dev/shm``) and, now
and then, a copy on disk. The kernel clears and finds each page of a file in memory,
which takes longer than to copy it: so two files are written in turn, and stay mapped.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import struct
import sys
import types
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from replicator.backends.base import Replicator, refuse
from replicator.checkpoint import position
from replicator.checkpoint.inventory import Inventory
from replicator.checkpoint.manager import CheckpointManager, Metadata, raise_failure
from replicator.core.validation import INT64_MAX, format_value, is_integer, is_one_of
from replicator.elastic import STOPPED, VARIABLE
from replicator.errors import CheckpointError, ElasticError
from replicator.variables.table import set_released

if TYPE_CHECKING:
    from replicator.inputs.iterator import InputIterator

_COUNT = struct.Struct("<Q")
_FILES = "0", "1"
_MOST_HEADER_BYTES = 1024  # of an array in NumPy's format


class _Commits(CheckpointManager):
    """A manager of two files in a folder.

    A file begins with the count of steps and one, and with 0 while it is written.
    Arrays in NumPy's format follow: the texts of the checkpoint, and the variables in
    the order of their paths. A thread writes them while training goes on.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._thread = futures.ThreadPoolExecutor(1)
        self._unfinished: list[futures.Future[str]] = []
        self._mapped: dict[int, mmap.mmap] = {}  # by inode: files may be removed
        self.is_asked = False  # to stop: set by the chief, and after a save by all

    @property
    def latest_checkpoint(self) -> str | None:
        path = _newest(Path(self.directory))
        # After a save there is one, even if the first is still being written.
        return str(path) if self._metadata.value or _count_of(path) else None

    def copy(self, folder: Path) -> None:
        """Copies what was saved last to disk, once it is written."""
        done = self._thread.submit(_copy, Path(self.directory), folder)
        self._unfinished.append(done)

    def remove(self) -> None:
        """Frees the memory."""
        self._mapped.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def finish(self) -> str:
        """Waits for what is being written; returns why it failed, if it did."""
        outcomes = [each.result() for each in self._unfinished]
        self._unfinished.clear()
        return next(filter(None, outcomes), "")

    def _write(self, inventory: Inventory) -> str:
        """Begins to write; returns why the commit before failed, if it did."""
        if inventory.others:
            return (
                f"a commit holds variables only, but {inventory.others[0]!r} is none; "
                "leave it out, and let the program make it as it was"
            )
        outcome = self.finish()
        texts = [text.value for text in (self._metadata, *self._workers)]
        # Not copies: a step that changes a variable meanwhile gives it a new buffer.
        values = [each.value() for _, each in sorted(inventory.variables.items())]
        self._unfinished.append(self._thread.submit(self._fill, texts, values))
        return outcome

    def _conclude(self, outcome: str) -> None:
        self.is_asked = raise_failure(self._repl, outcome, flag=self.is_asked)

    def _fill(self, texts: Sequence[bytes], values: Sequence[Any]) -> str:
        """Writes a commit over the older one; returns why it could not."""
        joined = tf.train.BytesList(value=texts).SerializeToString()
        arrays = [np.frombuffer(joined, np.uint8), *map(np.asarray, values)]
        size = sum(_MOST_HEADER_BYTES + array.nbytes for array in arrays)
        path = min((Path(self.directory) / name for name in _FILES), key=_count_of)
        try:
            file = self._map(path, size)
            file.seek(0)
            file.write(_COUNT.pack(0))
            for array in arrays:
                header = np.lib.format.header_data_from_array_1_0(array)
                np.lib.format.write_array_header_1_0(file, header)
                # Not written: meanwhile no other thread could run.
                place = np.frombuffer(file, np.uint8, array.nbytes, file.tell())
                place[:] = array.reshape(-1).view(np.uint8)  # of texts, a TypeError
                file.seek(array.nbytes, os.SEEK_CUR)
            file.seek(0)
            file.write(_COUNT.pack(json.loads(texts[0])["step"] + 1))
        except (OSError, TypeError, ValueError) as error:
            return (
                f"a commit could not be written to {str(path)!r}: {error}; the one "
                "before is still there; free memory, or pass another --memory-dir"
            )
        return ""

    def _map(self, path: Path, size: int) -> mmap.mmap:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        with path.open("r+b") as file:
            key = os.fstat(file.fileno()).st_ino
            if key not in self._mapped or len(self._mapped[key]) < size:
                # All pages now: memory that is full would end the process later.
                os.posix_fallocate(file.fileno(), 0, size)
                self._mapped[key] = mmap.mmap(file.fileno(), 0)
            return self._mapped[key]

    def _read_texts(self, path: str) -> list[bytes]:
        with _opened(path) as (_, texts):
            return texts

    def _read(self, path: str, inventory: Inventory) -> None:
        with _opened(path) as (file, _):
            for _, variable in sorted(inventory.variables.items()):
                value = np.load(file).view(variable.dtype.as_numpy_dtype)
                set_released(variable, value)


def _newest(folder: Path) -> Path:
    """The file of the latest step of a folder; without a commit its count is 0."""
    return max((folder / name for name in _FILES), key=_count_of)


def _count_of(path: Path) -> int:
    """The count of a file, 0 if it is not complete."""
    with contextlib.suppress(OSError, struct.error), path.open("rb") as file:
        return int(*_COUNT.unpack(file.read(_COUNT.size)))
    return 0


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[IO[bytes], list[bytes]]]:
    """Yields the file of a commit, and the texts that it begins with."""
    try:
        with Path(path).open("rb") as file:
            file.seek(_COUNT.size)
            texts = tf.train.BytesList.FromString(np.load(file).tobytes()).value
            yield file, list(texts)
    except (OSError, ValueError, EOFError, DecodeError) as error:
        raise CheckpointError(
            f"commit {path!r} could not be read: {error}; delete it, and start again"
        ) from error


def _copy(memory: Path, folder: Path) -> str:
    """Copies a commit to disk, where it takes the place of another one at once."""
    new = folder / "new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_newest(memory), new)
        with new.open("rb") as file:
            os.fsync(file.fileno())
        new.replace(folder / _FILES[0])
    except OSError as error:
        return (
            f"a commit could not be copied to {str(folder)!r}: {error}; free space "
            "there, or pass another --state-dir, and start again"
        )
    return ""


_GLOBAL, _PER_REPLICA = "keep_global", "keep_per_replica"
_RULES = {"linear": 1.0, "sqrt": 0.5}  # exponents of the ratio of replicas


class ElasticState:
    """What an elastic job keeps when its workers change.

    Create it after the model, the optimizer and the inputs, and loop over ``steps``.
    Under ``python -m replicator.elastic`` the training then continues from the last
    commit; started in another way, the program runs without commits.

    Attributes:
      step: Steps that were finished, those before this start included.
    """

    def __init__(
        self,
        repl: Replicator,
        *,
        inputs: InputIterator | None = None,
        batches: str = _GLOBAL,
        scale_learning_rate: str | None = None,
        **trackables: Any,
    ) -> None:
        """Restores the last commit, if there is any; a collective.

        Args:
          repl: The replicator.
          inputs: The input iterator; each example of an epoch is used once, over all
            changes.
          batches: What stays when the number of replicas changes: ``keep_global``, the
            examples of a step (use ``split_global_batches(..., uneven=True)`` where
            replicas do not divide them), or ``keep_per_replica``, those of a replica.
          scale_learning_rate: With ``keep_per_replica``, how the learning rate follows
            the number of replicas: ``linear``, ``sqrt`` or None.
          **trackables: What to save, by name, as for ``make_checkpoint_manager``.

        Raises:
          CheckpointError: The last commit cannot be read.
          ElasticError: Inputs do not keep ``batches``, or the rate is a schedule.
          TypeError: ``repl`` is not a replicator, or something cannot be saved.
          ValueError: Nothing to save, or another name in place of those above.
        """
        _check_arguments(repl, batches, scale_learning_rate)
        self.step = 0
        self._repl, self._inputs = repl, inputs
        self._batches, self._rule = batches, scale_learning_rate
        text = os.environ.get(VARIABLE)
        self._job: Any = types.SimpleNamespace(**json.loads(text)) if text else None
        folder = self._job.memory if self._job else "."
        self._commits = _Commits(repl, folder, trackables, max_to_keep=1, inputs=inputs)
        if inputs is not None:
            inputs.divides_steps = batches == _PER_REPLICA
        optimizers = Inventory(trackables).optimizers.values() if self._rule else ()
        self._rates = [optimizer.learning_rate for optimizer in optimizers]
        if not all(hasattr(rate, "assign") for rate in self._rates):
            raise ElasticError(
                f"scale_learning_rate={self._rule!r} needs a learning rate that is a "
                "number, and not a schedule; scale the schedule by repl.num_replicas "
                "yourself, with scale_learning_rate=None"
            )
        self._num_commits, self._committed = 0, -1
        if self._job:
            self._restore(Path(folder), Path(self._job.disk))

    def steps(self, num_steps: int, *, commit_every: int = 10) -> Iterator[int]:
        """Yields the number of each step that is left, and commits.

        Each iteration of your loop is one step. Where the supervisor asks for it, the
        process exits after a commit, by ``SystemExit``.

        Args:
          num_steps: Steps of the whole job, those before this start included.
          commit_every: Steps between commits. A lost worker costs at most these, and
            those that ran while a commit was being written.

        Raises:
          CheckpointError: A commit could not be written.
          ValueError: Not integers, or ``commit_every`` is less than 1.
        """
        given = {"num_steps": (num_steps, 0), "commit_every": (commit_every, 1)}
        for name, (value, least) in given.items():
            if not is_integer(value, least=least, most=INT64_MAX):
                raise ValueError(
                    f"steps({name}={format_value(value)}) must be an integer of at "
                    f"least {least}; write for example steps(1000, commit_every=10)"
                )
        return self._steps(num_steps, commit_every)

    def _steps(self, num_steps: int, commit_every: int) -> Iterator[int]:
        while self.step < num_steps:
            yield self.step
            self.step += 1
            is_last = self.step == num_steps
            if is_last or self.step % commit_every == 0:
                self.commit(to_disk=is_last)

    def commit(self, *, to_disk: bool = False) -> None:
        """Makes what was trained so far safe; a collective.

        It is written while training goes on; until then the previous commit counts.

        Args:
          to_disk: Whether it is written, and on disk as well, when this returns.

        Raises:
          CheckpointError: It, or the one before, could not be written; the last one
            that could is still there.
        """
        job, repl = self._job, self._repl
        if job is None or (self.step == self._committed and not to_disk):
            return
        # Memory of a single program may be lost with its host.
        every = job.disk_every if repl.num_programs >= job.num_hosts else 1
        is_due = self._num_commits % every == 0
        self._num_commits += 1
        repl.also_writes = job.is_first_of_host
        # All workers stop after the same commit: what the chief sees counts.
        self._commits.is_asked = repl.is_chief and Path(job.stop_file).exists()
        try:
            self._commits.save(self.step)
        finally:
            repl.also_writes = False
        self._committed = self.step
        is_stopping = self._commits.is_asked
        to_disk = to_disk or is_stopping
        if repl.is_chief and (to_disk or is_due):
            self._commits.copy(Path(job.disk))
        if to_disk or every == 1:  # otherwise steps go on meanwhile
            raise_failure(repl, self._commits.finish())
        if to_disk and job.is_first_of_host:  # memory of an idle host is free
            self._commits.remove()
        if is_stopping:
            sys.exit(STOPPED)

    def _restore(self, memory: Path, disk: Path) -> None:
        """Restores the newest commit, of any host's memory or of the disk."""
        repl = self._repl
        path = _newest(memory)
        own = _count_of(path), _count_of(_newest(disk))
        counts = map(json.loads, repl.gather_bytes(json.dumps(own).encode()))
        in_memory, (on_disk, *_) = zip(*counts, strict=True)
        best = max(in_memory)
        if not best and not on_disk:
            return
        if best <= on_disk or min(in_memory) < best:  # not all hosts have it
            copies = best > on_disk and in_memory.index(best) == repl.worker_id
            raise_failure(repl, _copy(memory, disk) if copies else "")
            path = _newest(disk)
        metadata = self._commits.read_metadata(path)
        if self._inputs is not None:
            self._check_batches(self._inputs, metadata)
        restored = self._commits.restore(path)
        assert restored is not None
        self.step = self._committed = restored.step
        ratio = repl.num_replicas / metadata.num_replicas
        for rate in self._rates if ratio != 1 else ():
            rate.assign(rate * ratio ** _RULES[self._rule or ""])
        if repl.is_chief:
            how = restored.input_position or "none"
            print(f"continues at step {self.step}; inputs: {how}", flush=True)  # noqa: T201

    def _check_batches(self, inputs: InputIterator, metadata: Metadata) -> None:
        """Refuses inputs whose batches do not stay as ``batches`` says."""
        repl = self._repl
        here = position.current(inputs, repl.num_replicas, repl.num_workers)
        sizes = [
            (each.examples_per_step or 0)
            // (each.num_replicas if self._batches == _PER_REPLICA else 1)
            for each in (*metadata.positions[:1], here)
        ]
        if all(sizes) and sizes[0] != sizes[-1]:
            raise ElasticError(
                f"batches={self._batches!r}, but such a batch had {sizes[0]} examples "
                f"at the last commit, and has {sizes[-1]} now; let input_fn make the "
                f"same for any number of replicas, or pass the other of {_GLOBAL!r} "
                f"and {_PER_REPLICA!r}"
            )


def _check_arguments(repl: Any, batches: Any, rule: Any) -> None:
    if not isinstance(repl, Replicator):
        raise TypeError(
            f"ElasticState takes the replicator first, not {format_value(repl)}; pass "
            "what replicator.create returned"
        )
    refuse(repl, "ElasticState()")
    if not is_one_of(batches, (_GLOBAL, _PER_REPLICA)):
        raise ValueError(
            f"batches={format_value(batches)} is neither {_GLOBAL!r} nor "
            f"{_PER_REPLICA!r}; pass what stays when the number of replicas changes"
        )
    rules = _RULES if batches == _PER_REPLICA else ()
    if rule is not None and not is_one_of(rule, rules):
        raise ValueError(
            f"scale_learning_rate={format_value(rule)} with batches={batches!r} must "
            f"be one of {', '.join(map(repr, [*rules, None]))}"
        )
