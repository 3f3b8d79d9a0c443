"""Input pipelines: how their batches reach the replicas."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import data as _tf_data
from replicator.core import context as context_lib
from replicator.core import devices as devices_lib
from replicator.core import validation
from replicator.core.step import PerReplica
from replicator.errors import ClusterError
from replicator.inputs.batches import can_fill, divide, fill, trimmed

if TYPE_CHECKING:
    from replicator.inputs.context import InputContext, InputFn

    Read = Callable[[Any], Any]  # Of an iterator.
    UnevenInputs = Callable[["InputIterator", bool], bool]


def to_pipeline(dataset: Any) -> tf.data.Dataset:
    """Returns a dataset of an input function, untuned unless its options say so."""
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"input_fn returned {type(dataset).__name__!r}, but it must return a "
            "tf.data.Dataset whose elements are per-replica batches"
        )
    return _tf_data.without_autotune(dataset)


def spec_signature(spec: Any) -> Hashable:
    """Returns a hashable key of a nest of ``tf.TypeSpec``: its structure and leaves."""
    structure = str(tf.nest.map_structure(lambda _: 0, spec))
    return structure, tuple(tf.nest.flatten(spec, expand_composites=False))


def common_element_spec(specs: Sequence[Any]) -> Any:
    """Returns the nest of ``tf.TypeSpec`` that the elements of all pipelines have."""
    first = specs[0]
    for index, spec in enumerate(specs[1:], start=1):
        try:
            tf.nest.assert_same_structure(first, spec)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"input pipelines 0 and {index} yield different structures: "
                f"{first} and {spec}; every call of input_fn must yield the same "
                "structure"
            ) from error
        # A dimension that differs between pipelines is unknown in the common spec.
        first = tf.nest.map_structure(
            lambda a, b: a.most_specific_common_supertype([b]), first, spec
        )
        if any(leaf is None for leaf in tf.nest.flatten(first)):
            raise ValueError(
                f"input pipelines 0 and {index} yield different types: {specs[0]} and "
                f"{spec}; every call of input_fn must yield the same types"
            )
    return first


# A step that fails has consumed its batches, like one that succeeds: the next step
# reads the next ones, and positions count it. So the graph counts, before each read, on
# the device of the iterator. The count is exact, but for pipelines of which one raises
# while another is read: whether that read was ended before it began is unknown.


class Source(NamedTuple):
    """What a dispatch reads: a nest that functions take."""

    iterators: tuple[Any, ...]  # Each feeds an equal share of the replicas, in order.
    counters: tuple[Any, ...]  # The handle of each one's counter.

    def read(self, index: int, read: Read, after: Sequence[Any] = ()) -> Any:
        """Emits a read of one iterator, and its count."""
        leaves = tf.nest.flatten(list(after), expand_composites=True)[:1]
        with tf.control_dependencies(leaves):
            count = tf.raw_ops.AssignAddVariableOp(
                resource=self.counters[index], value=tf.constant(1, tf.int64)
            )
        with tf.control_dependencies([count]):
            return read(self.iterators[index])

    def read_each(self, num_replicas: int, read: Read = next) -> list[Any]:
        """Emits reading the batch of every replica, in order."""
        share = num_replicas // len(self.iterators)
        batches: list[Any] = []
        for replica in range(num_replicas):
            after = batches[-1:] if replica % share else []
            batches.append(self.read(replica // share, read, after))
        return batches


def next_batches(source: Sequence[Any], num_replicas: int) -> list[Any]:
    """Reads the batch of every replica; works in graphs and eagerly."""
    if isinstance(source, Source):
        return source.read_each(num_replicas)
    if isinstance(source[0], tf.data.Iterator):
        # Reads of one iterator keep program order.
        share = num_replicas // len(source)
        return [next(source[replica // share]) for replica in range(num_replicas)]
    return list(source)


def all_read(batches: Sequence[Any]) -> tf.Operation:
    """Emits an op that runs after all batches were read."""
    # A step waits for it: an update that needs no batch must not run in a step whose
    # batch is missing. (TensorFlow drops control inputs that are also data inputs.)
    leaves = [tf.nest.flatten(b, expand_composites=True)[0] for b in batches]
    with tf.control_dependencies(leaves):
        return tf.no_op("all_read")


class InputIterator:
    """The pipelines of one job and their position, ready for ``run``.

    Made by ``Replicator.make_input_iterator``; use it in cross-replica context. It is
    also a Python iterator, of one step's batches as a nest of ``PerReplica``, which
    shares its position with ``run`` and checkpoints, and stops at the end of the data;
    ``reinitialize`` starts over. A step that fails has consumed its batches and counts.

    Attributes:
      pipelines: The datasets that the input function returned; each element is the
        batch of one replica.
      element_spec: Nest of ``tf.TypeSpec`` of one per-replica batch.
      num_replicas: Replicas that are fed.
      num_input_pipelines: Pipelines of the whole job.
      signature: Hashable; equal if a step that was traced for one also fits the other.
      num_steps: Steps that were fed since the first element.
      num_skipped: Of those, the steps that ``start`` skipped.
      num_rewinds: Times that the pipelines were rewound to their first element.
      is_at_end: Whether a replica had no batch for a step.
      uneven_inputs: Makes ``next`` end with the same step in all worker processes that
        read data of their own; None where this process reads all data.
      stateless_reason: Why the iterators have no state to save; empty if they have.
      owner: The replicator whose replicas are fed; None if it was made directly.
    """

    stateless_reason = ""
    trimmed_reason = ""  # The same, until the next rewind.
    divides_steps = False  # Whether a restore may begin with a smaller step.
    owner: validation.ReplicatorId | None = None

    def __init__(
        self,
        input_fn: InputFn,
        contexts: Sequence[InputContext],
        num_replicas: int,
        *,
        devices: Sequence[str] | None = None,
        num_prefetched: int = 0,
        targets: Sequence[str] = (),
    ) -> None:
        # A pipeline per context; each feeds an equal share of the replicas, in order.
        # ``devices`` are CPUs of pipelines, and ``targets`` those of replicas that get
        # so many batches before they are read.
        self.uneven_inputs: UnevenInputs | None = None
        self.num_replicas = num_replicas
        self.num_input_pipelines = contexts[0].num_input_pipelines
        first, share = contexts[0].input_pipeline_id, num_replicas // len(contexts)
        self.first_replica_id = first * share
        self._devices = devices
        self._num_prefetched, self._targets = num_prefetched, list(targets)
        if self._copies:
            self.stateless_reason = "batches prefetched to devices cannot be saved"
        self._build = lambda: self._at_devices(
            lambda context: self._check(input_fn(context)), contexts
        )
        self.pipelines: tuple[tf.data.Dataset, ...] = self._build()
        specs = [pipeline.element_spec for pipeline in self.pipelines]
        self.element_spec: Any = common_element_spec(specs)
        self._is_alone = contexts[0].num_replicas_in_sync == 1
        self._is_fed = True
        self.num_rewinds = self.num_steps = self.num_skipped = 0
        self.is_at_end = False
        self._iterators: tuple[Any, ...] | None = None
        self._source: Source | None = None
        self._counters: list[Any] = []
        # By iterator: reads outside of graphs, and those of steps that are noted.
        self._num_eager = self._num_settled = np.zeros([0], np.int64)

    @functools.cached_property
    def signature(self) -> Hashable:
        """The key of a program over such iterators; see the class."""
        how = len(self.pipelines), self._copies, self.pads_last_step
        return "iterator", how, spec_signature(self.element_spec)

    @functools.cached_property
    def pads_last_step(self) -> bool:
        """Whether what is left for the last step is divided; see ``batches``."""
        may_end = self.uneven_inputs is not None or self.may_end
        return not self._is_alone and may_end and can_fill(self.element_spec)

    @functools.cached_property
    def shuffles_at_random(self) -> bool:
        """Whether a pipeline, read again, has another order than it had."""
        local = [p for p in self.pipelines if isinstance(p, tf.data.Dataset)]
        return any(map(_tf_data.shuffles_at_random, local))

    @property
    def iterators(self) -> tuple[Any, ...]:
        """The iterators over ``pipelines``, created on first use."""
        if self._iterators is None:
            self._iterators = self._iterate(self.pipelines)
        return self._iterators

    @property
    def source(self) -> Source:
        """The iterators as what a dispatch reads, with the counters of their reads."""
        if self._source is None:
            devices = list(map(devices_lib.cpu_of, self._devices or ()))
            if len(devices) != len(self.iterators):
                devices = ["CPU:0"] * len(self.iterators)
            self._counters = []
            for device in devices:
                # ``tf.Variable`` would be one of the strategy whose scope this is in.
                with tf.init_scope(), tf.device(device):
                    zero = tf.zeros([], tf.int64)
                    counter = _tf_compat.make_variable(
                        initial_value=zero, trainable=False
                    )
                self._counters.append(counter)
            # A function on another worker could otherwise count before they are 0.
            _tf_compat.wait_for_remote_ops()
            handles = tuple(counter.handle for counter in self._counters)
            self._source = Source(iterators=self.iterators, counters=handles)
            self._num_eager = np.zeros([len(devices)], np.int64)
            self._num_settled = np.zeros([len(devices)], np.int64)
        return self._source

    @property
    def _reads_per_step(self) -> int:
        """How often one step reads each iterator."""
        return self.num_replicas // len(self.iterators)

    def _read(self, index: int) -> Any:
        """Reads one element eagerly."""
        iterator = self.source.iterators[index]
        self._num_eager[index] += 1
        return next(iterator)

    @property
    def may_end(self) -> bool:
        """Whether any pipeline is not known to be endless, as it is after repeat()."""
        endless = tf.data.INFINITE_CARDINALITY
        sizes = self._at_devices(lambda p: int(p.cardinality()), self.pipelines)
        return any(size != endless for size in sizes)

    def reinitialize(self) -> None:
        """Rewinds every pipeline to its first element; shuffles draw a new order."""
        if self._iterators is None:
            return
        self._iterators, self._source = self._iterate(self.pipelines), None
        self.trimmed_reason = ""
        self.num_rewinds += 1
        self.num_steps = self.num_skipped = 0
        self.is_at_end = False

    def start(
        self,
        num_steps: int = 0,
        *,
        num_rewinds: int = 0,
        to_end: bool = False,
        drops: Sequence[int] = (),
    ) -> None:
        """Moves new pipelines to a position that others had reached.

        Skipping reads and drops the elements, so it takes as long as the pipelines
        need to produce them.

        Args:
          num_steps: Steps to skip.
          num_rewinds: How often the others had been rewound; shuffles then draw the
            order of that epoch.
          to_end: Whether to skip everything.
          drops: Examples that the next step lacks, by replica of this process.
        """
        if self._iterators is not None:
            self.pipelines = self._build()
        # Each pass over a dataset draws the order of its shuffles from a new seed.
        for _ in range(num_rewinds):
            self._iterate(self.pipelines)
        pipelines = self.pipelines
        if num_steps or to_end:
            num_batches = num_steps * self.num_replicas // len(pipelines)
            skipped = -1 if to_end else num_batches
            pipelines = self._at_devices(lambda p: p.skip(skipped), pipelines)
        self.trimmed_reason = "the first step lacked examples" if drops else ""
        if drops:
            share = len(drops) // len(pipelines)
            parts = [drops[i : i + share] for i in range(0, len(drops), share)]
            pipelines = tuple(map(trimmed, pipelines, parts))
        self._iterators, self._source = self._iterate(pipelines), None
        self.num_rewinds = num_rewinds
        self.num_steps = self.num_skipped = num_steps
        self.is_at_end = to_end

    # Without prefetching, a batch is copied to its replica's device when the step that
    # reads it begins. With it, a thread fills a buffer on every replica's device while
    # earlier steps run. If replicas compute on the CPU device that their pipeline runs
    # on, nothing is copied, and the buffer is that of ``tf.data.Dataset.prefetch``. It
    # is for other processes, too: TensorFlow's iterators do not feed those.
    @property
    def _copies(self) -> bool:
        """Whether batches are copied before they are read."""
        near = list(map(devices_lib.first_cpu, self._targets))
        is_near = all(self._source_of(r) == cpu for r, cpu in enumerate(near))
        return self._num_prefetched > 0 and is_near and near != self._targets

    def _source_of(self, replica: int) -> str:
        """The CPU device of the pipeline that feeds a replica."""
        if self._devices is None:
            return devices_lib.first_cpu(self._targets[0])
        return self._devices[replica * len(self._devices) // self.num_replicas]

    def check_owner(self, user: validation.ReplicatorId) -> None:
        """Rejects a replicator whose replicas these inputs do not feed."""
        remedy = "pass what make_input_iterator() of this one returns"
        validation.check_owner(self, user, "the input iterator", remedy)

    def _check(self, pipeline: Any) -> tf.data.Dataset:
        return to_pipeline(pipeline)

    def _iterate(self, pipelines: Sequence[tf.data.Dataset]) -> tuple[Any, ...]:
        share = self.num_replicas // len(pipelines)
        if self.pads_last_step:
            pipelines = self._at_devices(lambda p: fill(p, share), pipelines)
        if self._copies:
            iterators = tuple(
                iterator
                for index, pipeline in enumerate(pipelines)
                for iterator in _tf_data.device_iterators(
                    pipeline,
                    self._targets[index * share : (index + 1) * share],
                    self._source_of(index * share),
                    self._num_prefetched,
                )
            )
        else:
            ahead = self._num_prefetched * share
            iterators = self._at_devices(
                lambda pipeline: iter(pipeline.prefetch(ahead) if ahead else pipeline),
                pipelines,
            )
        _tf_compat.wait_for_remote_ops()
        return iterators

    def _at_devices(
        self, function: Callable[[Any], Any], values: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Calls a function on the value of each pipeline, on the pipeline's device."""
        if self._devices is None:
            return tuple(map(function, values))
        results = []
        for device, value in zip(self._devices, values, strict=True):
            with tf.device(device):
                results.append(function(value))
        return tuple(results)

    def get_next(self) -> Any:
        """Reads one step's batches eagerly: a nest of ``PerReplica``."""
        context_lib.check_reads_outside()
        with self.count(1):
            batch = self._get_next()
            if not self._is_fed:
                raise StopIteration
        return batch

    def __iter__(self) -> InputIterator:
        return self

    def __next__(self) -> Any:
        """Reads one step's batches; see the class."""
        context_lib.check_reads_outside()
        if self.is_at_end:
            raise StopIteration
        with self.count(1):
            try:
                batch = self._get_next()
            except (StopIteration, tf.errors.OutOfRangeError):
                batch = None
            is_end = batch is None or not self._is_fed
            if self.uneven_inputs is not None:
                is_end = self.uneven_inputs(self, is_end)
            if is_end:
                raise StopIteration
        return batch

    def _get_next(self) -> Any:
        share = self._reads_per_step
        batches = [self._read(replica // share) for replica in range(self.num_replicas)]
        if self.pads_last_step:
            batches, is_fed = divide(batches)
            self._is_fed = bool(is_fed)

        def group(spec: Any, *values: Any) -> PerReplica[Any]:
            common = spec if self.pads_last_step else None
            return PerReplica(values, owner=self.owner, spec=common)

        return tf.nest.map_structure(group, self.element_spec, *batches)

    @contextlib.contextmanager
    def count(self, num_steps: int) -> Iterator[None]:
        """Counts the steps that are read inside it; records the end of the data."""
        try:
            yield
        except (StopIteration, tf.errors.OutOfRangeError):
            self.is_at_end = True
            # The last one that began found no batch.
            self.num_steps += max(self._recount(drops_rest=False) - 1, 0)
            raise
        except ClusterError:  # its iterators may be lost with a process
            raise
        except BaseException as error:
            self.num_steps += self._num_begun(error, num_steps)
            raise
        self.num_steps += num_steps
        if self._source is not None:
            self._num_settled += num_steps * self._reads_per_step

    def _num_begun(self, error: BaseException, num_steps: int) -> int:
        """How many of some steps that raised an error have consumed their batches."""
        del error, num_steps  # they are counted
        return self._recount(drops_rest=True)

    def _recount(self, *, drops_rest: bool) -> int:
        """Notes what was read since the last steps that are noted."""
        if self._source is None:
            return 0
        counted = [counter.numpy() for counter in self._counters]
        begun = self._num_eager + np.asarray(counted, np.int64)
        news = begun - self._num_settled
        num_steps = -(-int(max(news)) // self._reads_per_step)
        self._num_settled = begun
        for index, read in enumerate(news if drops_rest else ()):
            for _ in range(num_steps * self._reads_per_step - read):
                # An element that raises is consumed as well; the end comes again.
                with contextlib.suppress(StopIteration, tf.errors.OpError):
                    self._read(index)
                self._num_settled[index] += 1
        return num_steps


def counted(inputs: Any, num_steps: int) -> contextlib.AbstractContextManager[None]:
    """Counts the steps that are read inside it, if ``inputs`` have a position."""
    if isinstance(inputs, InputIterator):
        return inputs.count(num_steps)
    return contextlib.nullcontext()
