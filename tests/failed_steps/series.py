"""Draws jobs and failures, and compares each with a run that nothing disturbed."""

import dataclasses
import random

import injected
import numpy as np
import tensorflow as tf

import replicator

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

    return injected.Job(
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
    place = draw.randrange(injected.NUM_PLACES)
    before = job.state()
    for done in range(step):
        before = job.after(before, job.num_steps + done)
    after = job.after(before, job.num_steps + step)
    if job.fails(num_steps, step, replica, place) is None:
        return [*wrong, "the failure was not raised"]
    job.num_steps += step + 1
    seen = job.state()
    wrong += job.check_reads(seen)
    wrong += injected.left_over(before, after, seen, replica, place)
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
        numbers = [_uniform(drawn_from, r, job.repl.num_replicas) for r in job.replicas]
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
        for field in dataclasses.fields(injected.State)
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


def _uniform(state, replica, num_replicas):
    folded = injected.fold(np.array(state), replica, num_replicas)
    generator = tf.random.Generator.from_state(tf.constant(folded), alg="philox")
    return float(generator.uniform([]))
