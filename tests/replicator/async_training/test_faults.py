"""Processes that die while others train asynchronously: every update counts once.

The chief continues from the last checkpoint, says what it sees after every call, and
trains until somebody is killed.
"""

import re
from pathlib import Path

import case_cluster
import keras
import numpy as np
import pytest
import tensorflow as tf
from damaging import until

import replicator

NUM_DISPATCHES = 2
NUM_STEPS = 10
SAVE_EVERY = 4
NUM_BIG = 4_000_000
WORKER_TIMEOUT_SEC = 60.0


def by_pipeline(ctx):
    """Integers: 1 to 7 again and again on worker 0, twice as much on worker 1."""
    numbers = tf.data.Dataset.range(1, 8).repeat()
    return numbers.map(lambda x: tf.cast(x * (ctx.input_pipeline_id + 1), tf.float32))


def sum_of_batches(num_steps, num_workers):
    of_first = sum(1 + step % 7 for step in range(num_steps))
    return float(of_first * sum(range(1, num_workers + 1)))


def make_training(repl):
    """Two optimizers on all servers, whose sums of integers identify every step."""
    with repl.context():
        module = tf.Module()
        module.plain = [tf.Variable(tf.zeros([n, 2])) for n in (3, 40, 5, 7)]
        module.heavy = [tf.Variable(tf.zeros([n])) for n in (9, 4, 60, 30)]
        module.big = tf.Variable(tf.zeros([NUM_BIG]), trainable=False)
        sgd = repl.wrap_optimizer(keras.optimizers.SGD(1.0))
        # With momentum 1 the slot is minus the sum of all gradients.
        momentum = repl.wrap_optimizer(keras.optimizers.SGD(1e-6, momentum=1.0))
        sgd.build(module.plain)
        momentum.build(module.heavy)

    def step(value):
        grads = [0.0 * w + value for w in (*module.plain, *module.heavy)]
        num = len(module.plain)
        sgd.apply_gradients(zip(grads[:num], module.plain, strict=True))
        momentum.apply_gradients(
            zip([1e6 * g for g in grads[num:]], module.heavy, strict=True)
        )
        return value

    return module, sgd, momentum, step


def distinct(variables):
    """All values there are in some variables."""
    return np.unique(np.concatenate([np.ravel(v.numpy()) for v in variables])).tolist()


def train(repl, folder):
    module, sgd, momentum, step = make_training(repl)
    inputs = repl.make_input_iterator(by_pipeline)
    manager = repl.make_checkpoint_manager(
        folder / "checkpoints",
        inputs=inputs,
        module=module,
        sgd=sgd,
        momentum=momentum,
    )
    restored = manager.restore()
    call = restored.step if restored else 0
    case_cluster.send(restored=call)
    while True:
        for _ in range(NUM_DISPATCHES):
            repl.schedule(step, inputs, num_steps=NUM_STEPS)
        repl.join()
        call += 1
        try:
            values = {
                "plain": distinct(module.plain),
                "heavy": distinct(momentum.wrapped.momentums),
                "num_updates": [int(o.iterations.numpy()) for o in (sgd, momentum)],
            }
        except tf.errors.UnavailableError:
            continue  # TensorFlow's own words; the next call says which server is lost
        num_counted = repl.staleness().num_updates
        case_cluster.send(
            call=call, redone=repl.num_redone, num_counted=num_counted, **values
        )
        if call % SAVE_EVERY == 0:
            case_cluster.send(saving=call)
            manager.save(call)
            case_cluster.send(saved=call)


def set_up(folder):
    return (folder,)


def end(folder):
    """Trains, and says how it ended."""
    try:
        repl = replicator.create("async", recovery_timeout_sec=WORKER_TIMEOUT_SEC)
        train(repl, folder)
    except replicator.ReplicatorError as error:
        case_cluster.send(error=type(error).__name__, message=str(error))
        raise


CASES = {"end": end}


pytestmark = pytest.mark.processes

FOLDER = Path(__file__).parent
STEPS_PER_CALL = NUM_DISPATCHES * NUM_STEPS
CHIEF = ("chief", 0)
STORY_SEC = 1800.0
START_SEC = 300.0
# A lost server is detected by its closed port within seconds; servers without a client
# end after 2 s.
FAULT_SEC = 120.0
NUM_SERVERS = 2
NUM_WORKERS = 2


class Job:
    def __init__(self, cluster):
        self.cluster = cluster
        self._num_lines_before = 0

    def reported(self, name):
        sent = case_cluster.received(
            self.cluster, CHIEF, num_lines_before=self._num_lines_before
        )
        return case_cluster.last(sent, name)

    def last(self):
        sent = case_cluster.received(self.cluster, CHIEF)
        return [message for message in sent if "call" in message][-1]

    def wait_until(self, condition, timeout_sec=START_SEC):
        until(condition, self.cluster.tails, timeout_sec)

    def wait_for_calls(self, number):
        before = self.reported("call") or self.reported("restored") or 0
        self.wait_until(lambda: (self.reported("call") or 0) >= before + number)

    def wait_for_end(self):
        def has_ended():
            return not any(self.cluster.is_running(*m) for m in self.cluster.members)

        self.wait_until(has_ended, FAULT_SEC)

    def lose_server(self, server):
        """Kills it, and waits until the chief has said so and all have ended."""
        self.cluster.kill("ps", server)
        self.wait_until(lambda: self.reported("error"), FAULT_SEC)
        self.wait_for_end()
        return {name: self.reported(name) for name in ("error", "message", "saved")}

    def restart(self):
        """Starts all again; returns the step that the chief has restored."""
        self._num_lines_before = len(self.cluster.output(*CHIEF).splitlines())
        for member in self.cluster.members:
            self.cluster.restart(*member)
        self.wait_until(lambda: self.reported("restored") is not None)
        return self.reported("restored")


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    with case_cluster.started(
        "test_faults",
        tmp_path_factory.mktemp("faults"),
        path=FOLDER,
        case_timeout_sec=STORY_SEC,
        num_workers=NUM_WORKERS,
        num_ps=NUM_SERVERS,
        has_chief=True,
    ) as running:
        cluster, job, seen = running.cluster, Job(running.cluster), {}
        job.wait_for_calls(1)
        for worker in (1, 0):
            cluster.kill("worker", worker)
            cluster.restart("worker", worker)
            job.wait_for_calls(1)
        seen["lost workers"] = job.last()
        # Long before the next save, which would end after it was looked for.
        job.wait_until(lambda: job.reported("call") == (job.reported("saved") or 0) + 1)
        cluster.kill(*CHIEF)
        seen["lost chief"] = {"saved": job.reported("saved")}
        job.wait_for_end()

        seen["lost chief"]["restored"] = job.restart()
        job.wait_until(lambda: job.reported("saved"))
        seen["restarted after the chief"] = job.last()
        job.wait_until(lambda: (job.reported("saving") or 0) > job.reported("saved"))
        seen["lost in a save"] = job.lose_server(0)

        seen["lost in a save"]["restored"] = job.restart()
        job.wait_for_calls(1)
        seen["restarted after a server"] = job.last()
        seen["lost in a step"] = job.lose_server(1)
    return seen


@pytest.mark.parametrize(
    "when",
    ["lost workers", "restarted after the chief", "restarted after a server"],
)
def test_every_scheduled_step_is_applied_once(story, when):
    """Of both optimizers, on both servers, each with its own batch, whoever died."""
    found = story[when]
    num_steps = found["call"] * STEPS_PER_CALL
    total = sum_of_batches(num_steps, NUM_WORKERS)

    assert [-total] == found["plain"] == found["heavy"]
    assert [NUM_WORKERS * num_steps] * 2 == found["num_updates"]


def test_steps_were_done_again(story):
    """Otherwise killing workers has shown nothing; and the log counts them once."""
    found = story["lost workers"]
    num_steps = found["call"] * STEPS_PER_CALL

    assert found["redone"] > 0
    assert 2 * NUM_WORKERS * NUM_SERVERS * num_steps == found["num_counted"]


@pytest.mark.parametrize(
    ("when", "server"), [("lost in a save", 0), ("lost in a step", 1)]
)
def test_a_lost_server_is_an_error_that_names_it(story, when, server):
    """In bounded time, and with what to do; then all processes end."""
    found = story[when]
    message = found["message"]

    assert "ServerLostError" == found["error"], message
    assert re.search(rf"parameter server {server} \(localhost:\d+\) ", message), message
    assert "restore the last checkpoint" in message


@pytest.mark.parametrize("when", ["lost chief", "lost in a save"])
def test_a_restarted_job_continues_from_its_last_checkpoint(story, when):
    """A save that lost a server leaves the one before it in charge."""
    assert story[when]["saved"] == story[when]["restored"] > 0
