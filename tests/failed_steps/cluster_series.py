"""What processes of a cluster run: the client of one, or every worker of another."""

import random

import injected
import series
import tensorflow as tf

import replicator

SHARE = 2  # replicas of each worker
NUM_STEPS = 3  # in each run of a job that ends with a failure


def set_up(folder, *, seed, num_failures):
    return folder, seed, num_failures


def client(folder, seed, num_failures):
    """Injects failures into replicas of two processes; returns the differences."""
    repl = replicator.create("multi_worker_in_graph", num_replicas=2 * SHARE)
    return series.run(seed, num_failures, lambda _: repl, folder, is_remote=True)


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
    wrong += series.different(job.undisturbed(job.replicas), job.state())
    repl.assert_in_sync()
    manager.save(step=job.num_steps)
    replica = draw.randrange(repl.num_replicas)
    place = draw.randrange(injected.NUM_PLACES)
    before, after = job.state(), job.after(job.state(), job.num_steps)
    mine = replica - job.replicas[0] if replica in job.replicas else None
    try:
        error = job.fails(1, 0, replica, place)
    except replicator.ReplicatorError as lost:
        error = lost
    is_late = place == injected.NUM_PLACES - 1
    if error is None and (mine is not None or not is_late):
        wrong.append("the failure was not raised")
    if mine is not None and not isinstance(error, tf.errors.OpError):
        wrong.append(f"raised {error!r}")
    if error is None or mine is not None:
        job.num_steps += 1
    seen = job.state()
    if mine is not None:
        wrong += job.check_reads(seen)
    wrong += injected.left_over(before, after, seen, mine, place)
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
    return injected.Job(repl, input_fn, mode, element_of)


CASES = {"client": client, "worker": worker}
