"""A job with every kind of state, in which steps fail, and what it must then hold.

A step has five places in which an element of the data can make its replica fail, with
writes between them: the element decides step and replica. What the job holds is
calculated here in NumPy, one replica after the other.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

import replicator
from replicator.variables.kinds import Kind, replica_value

NUM_PLACES = 5
NOWHERE = [-1, 0]
# Values repeat, so that sums of float32 stay exact.
VALUES = 8
ON_READ = tf.VariableSynchronization.ON_READ
ERRORS = (tf.errors.InvalidArgumentError, tf.errors.UnknownError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """What a job holds; arrays have an item per replica."""

    weight: np.float32  # Mirrored; the sum of all values.
    slow: np.float32  # Mirrored; half of what it was, plus the largest value.
    mean: np.ndarray  # Reads as the mean.
    total: np.ndarray  # Reads as the sum.
    first: np.ndarray  # Reads as replica 0's: its last value.
    random: tuple[int, ...]  # State of a generator, of replica 0.


class Job:
    """A step with state of all kinds, its data, and the plan of its failure."""

    def __init__(self, repl, input_fn, mode, element_of, *, is_python=False):
        self.repl = repl
        self.element_of = element_of
        self.replicas = range(
            repl.first_replica_id, repl.first_replica_id + repl.num_local_replicas
        )
        with repl.context():
            self.weight = tf.Variable(1.0)
            self.slow = tf.Variable(0.0, trainable=False)
            self.mean = tf.Variable(0.0, trainable=False, synchronization=ON_READ)
            self.total = tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                synchronization=ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            self.first = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.generator = tf.random.Generator.from_seed(7, alg="philox")
            self.plan = tf.Variable(NOWHERE, dtype=tf.int64, trainable=False)
        self.first_random = tuple(self.generator.state.numpy().tolist())
        self.input_fn, self.mode = input_fn, mode
        self.inputs = repl.make_input_iterator(input_fn, mode)
        self.num_steps = 0
        self.step = _make_step(self, is_python)

    @property
    def variables(self):
        names = ("weight", "slow", "mean", "total", "first")
        return {name: getattr(self, name) for name in names}

    def run(self, num_steps=1):
        """Runs steps; counts those that have begun to read."""
        return self.repl.run(self.step, self.inputs, num_steps=num_steps)

    def fails(self, num_steps, step, replica, place):
        """Runs steps of which one fails; returns the error, None without one."""
        self.plan.assign([self.element_of(self.num_steps + step, replica), place])
        try:
            self.run(num_steps)
        except ERRORS as error:
            return error
        finally:
            self.plan.assign(NOWHERE)
        return None

    def state(self):
        found = {id(s.variable): s.values for s in self.repl.local_state()}
        local = {
            name: np.array([np.asarray(v) for v in found[id(getattr(self, name))]])
            for name in ("mean", "total", "first")
        }
        return State(
            weight=self.weight.numpy(),
            slow=self.slow.numpy(),
            random=tuple(self.generator.state.numpy().tolist()),
            **local,
        )

    def after(self, state, step, replicas=None):
        """What replicas hold after a step that all ended; by default, those here."""
        num_replicas = self.repl.num_replicas
        of_all = [self.element_of(step, r) % VALUES for r in range(num_replicas)]
        mine = np.array(of_all)[list(self.replicas if replicas is None else replicas)]
        return State(
            weight=np.float32(state.weight + np.float32(sum(of_all))),
            slow=np.float32(state.slow * np.float32(0.5) + np.float32(max(of_all))),
            mean=(state.mean + mine).astype(np.float32),
            total=state.total + mine,
            first=mine,
            random=_advanced(state.random),
        )

    def undisturbed(self, replicas):
        """What some replicas hold if no step of the job has ever failed."""
        zeros = np.zeros([len(replicas)])
        state = State(
            weight=np.float32(1.0),
            slow=np.float32(0.0),
            mean=zeros.astype(np.float32),
            total=zeros.astype(np.int64),
            first=zeros.astype(np.int64),
            random=self.first_random,
        )
        for step in range(self.num_steps):
            state = self.after(state, step, replicas)
        return state

    def check_reads(self, state):
        """Checks what is read outside, and that copies agree; returns what is wrong."""
        count = np.float32(len(state.mean))
        expected = {
            "mean": np.float32(state.mean.sum(dtype=np.float32) / count),
            "total": state.total.sum(),
            "first": state.first[0],
        }
        wrong = [
            f"{name} reads as {getattr(self, name).numpy()!r}, not {value!r}"
            for name, value in expected.items()
            if getattr(self, name).numpy() != value
        ]
        for entry in self.repl._table.entries():
            copies = [copy.numpy() for copy in entry.copies]
            if entry.variable is self.generator.state:
                folded = [
                    fold(state.random, r, self.repl.num_replicas) for r in self.replicas
                ]
                if not np.array_equal(copies, folded):
                    wrong.append("random copies do not follow replica 0's")
            same = all(np.array_equal(copy, copies[0]) for copy in copies)
            if entry.kind is Kind.MIRRORED and not same:
                wrong.append(f"copies of {entry.variable.name} are {copies}")
        if self.inputs.num_steps != self.num_steps:
            wrong.append(f"position {self.inputs.num_steps}, not {self.num_steps}")
        return wrong


def _make_step(job, is_python):
    def check(is_bad, place):
        def fail(value):
            if value:
                raise ValueError(f"injected at {place}")
            return value

        if is_python:
            return tf.py_function(fail, [is_bad], tf.bool).op
        return tf.debugging.Assert(tf.logical_not(is_bad), ["injected at", place])

    def step(x):
        value = x % VALUES
        number = tf.cast(value, tf.float32)
        after = [x]

        def place(index):
            with tf.control_dependencies(after):
                is_bad = tf.reduce_all(tf.stack([x, index]) == job.plan)
                after.append(check(is_bad, index))
            return tf.control_dependencies(after)

        with place(0):
            everything = replicator.all_sum(tf.identity(number))
            largest = replicator.all_max(tf.identity(number))
        after += [everything, largest]
        with place(1):
            after.append(job.weight.assign_add(tf.identity(everything)))
            after.append(job.mean.assign_add(number))
        with place(2):
            after.append(job.slow.assign(job.slow * 0.5 + largest))
            after.append(job.total.assign_add(value))
        with place(3):
            drawn = job.generator.uniform([])
            after.append(job.first.assign(value))
        after.append(drawn)
        with place(4):
            return tf.identity(x), tf.identity(drawn)

    return step


def fold(state, replica, num_replicas):
    """The state of a replica's generator, where replica 0 has this one."""
    state = tf.constant(state, tf.int64)
    return replica_value(state, Kind.RANDOM, replica, num_replicas).numpy()


def _advanced(state):
    """The state of a generator that has drawn one number."""
    generator = tf.random.Generator.from_state(
        tf.constant(state, tf.int64), alg="philox"
    )
    generator.uniform([])
    return tuple(generator.state.numpy().tolist())


def left_over(before, after, seen, replica, place):
    """What a failed step left that it cannot have written, as messages."""
    wrong = [
        f"{name} is {getattr(seen, name)}, neither {getattr(before, name)} nor "
        f"{getattr(after, name)}"
        for name in ("weight", "slow", "random")
        if getattr(seen, name) not in (getattr(before, name), getattr(after, name))
    ]
    for name, at in (("mean", 2), ("total", 3), ("first", 4)):
        values = getattr(seen, name)
        old, new = getattr(before, name), getattr(after, name)
        if not np.all((values == old) | (values == new)):
            wrong.append(f"{name} is {values}, of {old} and {new}")
        if (
            replica is not None
            and values[replica] != (new if place >= at else old)[replica]
        ):
            wrong.append(f"{name} of replica {replica} is {values}: failed at {place}")
    return wrong
