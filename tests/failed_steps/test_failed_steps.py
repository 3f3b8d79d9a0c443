"""Jobs with every kind of state, in which drawn steps fail, against undisturbed ones.

A step has five places in which an element of the data can make its replica fail, with
writes between them: the element decides step and replica. What the job holds is
calculated here in NumPy, one replica after the other. ``make failures`` draws many.
"""

from __future__ import annotations

import dataclasses
import functools
import random

import numpy as np
import pytest
import tensorflow as tf

import replicator

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
                folded = [fold(state.random, r) for r in self.replicas]
                if not np.array_equal(copies, folded):
                    wrong.append("random copies do not follow replica 0's")
            same = all(np.array_equal(copy, copies[0]) for copy in copies)
            if entry.kind.value == "mirrored" and not same:
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


# Knuth's multiplicative hash, of 63 bits.
FOLD = 0x1E3779B97F4A7C15


def fold(state, replica):
    """The state of a replica's generator, where replica 0 has this one."""
    *counters, key = state
    return np.int64([*counters, key ^ (FOLD * replica % 2**63)])


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


# Of one job, so that what TensorFlow keeps of traced functions does not add up.
PER_JOB = 50
NUM_ELEMENTS = 100_000
MODES = replicator.InputReplicationMode


def make_repl(draw, placement):
    num_replicas = draw.randint(2, 4)
    return replicator.create(
        "in_graph",
        num_replicas=num_replicas,
        devices=[f"CPU:{r}" for r in range(num_replicas)],
        variable_placement=placement,
        external_writes=draw.choice(["detect", "never"]),
    )


def make_job(draw, repl, *, is_remote=False):
    """A job over them; elsewhere, no Python can run."""
    num_replicas = repl.num_replicas
    is_generator = not is_remote and draw.random() < 0.25
    mode = draw.choice([MODES.SINGLE, MODES.PER_REPLICA])

    def input_fn(ctx):
        first, step = ctx.input_pipeline_id, ctx.num_input_pipelines
        if is_generator:
            return tf.data.Dataset.from_generator(
                lambda: iter(range(first, NUM_ELEMENTS, step)),
                output_signature=tf.TensorSpec([], tf.int64),
            )
        return tf.data.Dataset.range(first, NUM_ELEMENTS, step)

    return Job(
        repl,
        input_fn,
        mode,
        lambda step, replica: step * num_replicas + replica,
        is_python=not is_remote and draw.random() < 0.25,
    )


def run(seed, num_failures, make, tmp_path, *, is_remote=False):
    """Injects failures; returns a line for each difference."""
    draw = random.Random(seed)
    found = []
    for start in range(0, num_failures, PER_JOB):
        job = make_job(draw, make(draw), is_remote=is_remote)
        job.run()
        job.num_steps += 1
        for index in range(start, min(start + PER_JOB, num_failures)):
            what = f"seed {seed}, failure {index}"
            found += [f"{what}: {line}" for line in one(draw, job)]
            if index % 25 == 0:
                found += [f"{what}: {line}" for line in restored(job, tmp_path)]
    return found


def one(draw, job):
    """Good steps and writes, a step that fails, and good steps; returns differences."""
    wrong = good_steps(draw, job, draw.randint(0, 1))
    wrong += write(draw, job)
    num_steps = draw.randint(1, 3)
    step = draw.randrange(num_steps)
    replica = draw.randrange(job.repl.num_replicas)
    place = draw.randrange(NUM_PLACES)
    before = job.state()
    for done in range(step):
        before = job.after(before, job.num_steps + done)
    after = job.after(before, job.num_steps + step)
    if job.fails(num_steps, step, replica, place) is None:
        return [*wrong, "the failure was not raised"]
    job.num_steps += step + 1
    seen = job.state()
    wrong += job.check_reads(seen)
    wrong += left_over(before, after, seen, replica, place)
    wrong += write(draw, job)
    wrong += good_steps(draw, job, draw.randint(1, 2))
    if wrong:
        at = f"{num_steps} steps, the failing one {step}, replica {replica}, {place}"
        wrong = [f"{line} ({at})" for line in wrong]
    return wrong


def good_steps(draw, job, num_calls):
    """Steps from what is held, and what it must then be; returns differences."""
    wrong = []
    for _ in range(num_calls):
        state, num_steps = job.state(), draw.randint(1, 3)
        for done in range(num_steps):
            drawn_from, state = state.random, job.after(state, job.num_steps + done)
        elements, drawn = job.run(num_steps)
        job.num_steps += num_steps
        last = job.num_steps - 1
        expected = [job.element_of(last, r) for r in job.replicas]
        if expected != [int(x) for x in elements]:
            wrong.append(f"step {last} read {elements}, not {expected}")
        numbers = [_uniform(drawn_from, r) for r in job.replicas]
        if numbers != [float(x) for x in drawn]:
            wrong.append(f"step {last} drew {drawn}, not {numbers}")
        wrong += different(state, job.state()) + job.check_reads(job.state())
    return wrong


def write(draw, job):
    """Perhaps writes a variable outside, with a new value or the one that it has."""
    if draw.random() < 0.5:
        return []
    name = draw.choice(sorted(job.variables))
    variable, state = job.variables[name], job.state()
    value = variable.numpy() if draw.random() < 0.5 else draw.randint(-9, 9)
    value = np.asarray(value, variable.dtype.as_numpy_dtype)
    variable.assign(value)
    num_replicas = job.repl.num_replicas
    if name in ("weight", "slow"):
        copies = value
    elif name == "total":
        share = value // num_replicas
        copies = np.full([num_replicas], share)
        copies[0] = value - share * (num_replicas - 1)
    else:
        copies = np.full([num_replicas], value)
    return different(dataclasses.replace(state, **{name: copies}), job.state())


def different(expected, found):
    return [
        f"{field.name} is {getattr(found, field.name)}, not "
        f"{getattr(expected, field.name)}"
        for field in dataclasses.fields(State)
        if not np.array_equal(getattr(expected, field.name), getattr(found, field.name))
    ]


def restored(job, tmp_path):
    """What differs where the job's checkpoint is restored to new inputs."""
    state = job.state()
    manager = job.repl.make_checkpoint_manager(
        tmp_path, max_to_keep=1, inputs=job.inputs, **job.variables
    )
    manager.save(step=job.num_steps)
    again = job.repl.make_input_iterator(job.input_fn, job.mode)
    job.repl.make_checkpoint_manager(
        tmp_path, max_to_keep=1, inputs=again, **job.variables
    ).restore()
    wrong = different(state, job.state())
    expected = [job.element_of(job.num_steps, r) for r in job.replicas]
    found = [int(x) for x in next(again)]
    if found != expected:
        wrong.append(f"restored at {found}, not {expected}")
    return wrong


def _uniform(state, replica):
    folded = fold(state, replica)
    generator = tf.random.Generator.from_state(tf.constant(folded), alg="philox")
    return float(generator.uniform([]))


SHARE = 2  # replicas of each worker
NUM_STEPS = 3  # in each run of a job that ends with a failure


def set_up(folder, *, seed, num_failures):
    return folder, seed, num_failures


def client(folder, seed, num_failures):
    """Injects failures into replicas of two processes; returns the differences."""
    repl = replicator.create("multi_worker_in_graph", num_replicas=2 * SHARE)
    return run(seed, num_failures, lambda _: repl, folder, is_remote=True)


def worker(folder, seed, num_failures):
    """Continues the job of the last cluster, and ends it with a failure."""
    del num_failures  # one
    repl = replicator.create("multi_worker", num_replicas=2 * SHARE)
    draw = random.Random(seed)
    job = _make_job(repl)
    manager = repl.make_checkpoint_manager(
        folder.parent / "job",
        max_to_keep=2,
        inputs=job.inputs,
        generator=job.generator,
        **job.variables,
    )
    wrong = []
    saved = manager.restore()
    if saved is not None:
        job.num_steps = saved.step
    for _ in range(NUM_STEPS):
        elements, _ = job.run()
        job.num_steps += 1
        expected = [job.element_of(job.num_steps - 1, r) for r in job.replicas]
        if expected != [int(x) for x in elements]:
            wrong.append(f"step {job.num_steps - 1} read {elements}, not {expected}")
    wrong += job.check_reads(job.undisturbed(range(repl.num_replicas)))
    wrong += different(job.undisturbed(job.replicas), job.state())
    repl.assert_in_sync()
    manager.save(step=job.num_steps)
    replica = draw.randrange(repl.num_replicas)
    place = draw.randrange(NUM_PLACES)
    before, after = job.state(), job.after(job.state(), job.num_steps)
    mine = replica - job.replicas[0] if replica in job.replicas else None
    try:
        error = job.fails(1, 0, replica, place)
    except replicator.ReplicatorError as lost:
        error = lost
    is_late = place == NUM_PLACES - 1
    if error is None and (mine is not None or not is_late):
        wrong.append("the failure was not raised")
    if mine is not None and not isinstance(error, tf.errors.OpError):
        wrong.append(f"raised {error!r}")
    if error is None or mine is not None:
        job.num_steps += 1
    seen = job.state()
    if mine is not None:
        wrong += job.check_reads(seen)
    wrong += left_over(before, after, seen, mine, place)
    return [f"seed {seed}, replica {replica}, place {place}: {w}" for w in wrong]


def _make_job(repl):
    num_workers = repl.num_workers

    def input_fn(ctx):
        numbers = tf.data.Dataset.range(ctx.input_pipeline_id, 10**6, num_workers)
        return numbers.repeat()

    def element_of(step, replica):
        owner, place = divmod(replica, SHARE)
        return (step * SHARE + place) * num_workers + owner

    mode = replicator.InputReplicationMode.PER_WORKER
    return Job(repl, input_fn, mode, element_of)


CASES = {"client": client, "worker": worker}


# A few drawn failures of the series that ``make failures`` runs.
NUM_FAILURES = 20


@pytest.mark.parametrize("placement", ["shared", "mirrored"])
def test_after_any_failure_a_job_goes_on_as_if_it_had_started_there(
    placement, tmp_path
):
    """Any step, replica and place: copies, reads, positions and what follows."""
    make = functools.partial(make_repl, placement=placement)

    assert [] == run(1, NUM_FAILURES, make, tmp_path)
