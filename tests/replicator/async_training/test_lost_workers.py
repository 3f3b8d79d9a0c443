"""What a lost worker left is done once, and what never ends is named."""

import threading
import time

import keras
import pytest
import tensorflow as tf
from damaging import until

import replicator

WAIT_SEC = 60.0


def numbers(_):
    return tf.data.Dataset.range(100).map(lambda x: tf.cast(x, tf.float32))


class Job:
    """Two servers with a weight each; the first updates twice a step, and counts."""

    def __init__(self, make_async, *, num_replicas=1):
        self.repl = make_async(1, 2, num_replicas=num_replicas, recovery_timeout_sec=60)
        with self.repl.context():
            self.first, self.second = tf.Variable([0.0]), tf.Variable([0.0])
            self.optimizers = [
                self.repl.wrap_optimizer(keras.optimizers.SGD(1.0)) for _ in range(2)
            ]
        self.inputs = self.repl.make_input_iterator(numbers)
        self.gate = lambda x: None

    def step(self, x):
        gradient = tf.reshape(x, [1])
        for _ in range(2):
            self.optimizers[0].apply_gradients([(gradient, self.first)])
        late = tf.py_function(self._pass, [x], tf.float32)
        self.optimizers[1].apply_gradients([(tf.reshape(late, [1]), self.second)])
        return x

    def _pass(self, x):
        self.gate(float(x))
        return x

    def run(self, num_steps):
        results = self.repl.run(self.step, self.inputs, num_steps=num_steps)
        return [float(x) for x in results]

    def lose_once(self, at, *, when=lambda: True):
        """Loses the worker at a number, after something has happened."""

        def gate(x):
            if x == at:
                until(when)
                self.gate = lambda x: None
                raise ConnectionError("worker lost")

        self.gate = gate

    def values(self):
        return float(self.first[0]), float(self.second[0])


def test_what_a_lost_worker_left_half_done_is_completed(make_async):
    """Server 0 has a step more than server 1; new iterators drop what was read."""
    job = Job(make_async, num_replicas=2)
    assert [0.0, 1.0] == job.run(1)
    # The third of the next four steps, of which server 0 has both updates.
    applied = -2 * (0.5 + 2.5 + 4.5 + 6.5)
    job.lose_once(6.0, when=lambda: float(job.first[0]) == applied)

    assert [8.0, 9.0] == job.run(4)

    assert (applied - 2 * 8.5, (applied - 2 * 8.5) / 2) == job.values()
    assert [10, 5] == [int(each.iterations) for each in job.optimizers]
    assert 1 == job.repl.num_redone
    assert 5 == job.inputs.num_steps
    assert [10.0, 11.0] == job.run(1)


def test_a_step_that_raised_has_read_its_batch(make_async):
    """Its updates count where they arrived; a worker that is lost later reads on."""
    job = Job(make_async)

    def refuse(x):
        if x == 1.0:
            until(lambda: job.values() == (-2.0, 0.0))
            raise ValueError("refused")

    job.gate = refuse
    with pytest.raises(tf.errors.InvalidArgumentError, match="refused"):
        job.run(4)
    job.lose_once(2.0)

    assert [3.0] == job.run(2)
    assert (-2.0 - 4.0 - 6.0, -2.0 - 3.0) == job.values()


ONE, OTHER = "one", "other"


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ([(ONE, 1), (ONE, 3)], [4]),
        ([(ONE, 1), (OTHER, 1), (ONE, 1)], [1, 1, 1]),
        ([(ONE, 62), (ONE, 1), (ONE, 1), (ONE, 1)], [64, 1]),
        ([(ONE, 64), (ONE, 1)], [64, 1]),
        ([(ONE, 1), ("values", 1), ("inputs", 1)], [1, 1, 1]),
        ([(ONE, 1), (ONE, 1), ("results", 1)], [2, 1]),
    ],
    ids=["all", "another step", "as many as may", "too many", "sources", "results"],
)
def test_equal_steps_that_wait_run_together(make_async, waiting, expected):
    repl = make_async(1, 1)
    with repl.context():
        count, total = tf.Variable(0.0), tf.Variable(0.0)
    inputs = repl.make_input_iterator(numbers)

    def hold():
        def wait():
            until(lambda: num_before + len(waiting) <= len(repl.workers[0].given))
            return 0.0

        return tf.py_function(wait, [], tf.float32)

    def one():
        return count.assign_add(1.0)

    def other():
        return count.assign_add(1.0)

    def add(x):
        total.assign_add(x)
        return count.assign_add(1.0)

    calls = {
        ONE: (one,),
        OTHER: (other,),
        "values": (add, replicator.PerReplica([tf.constant(5.0)])),
        "inputs": (add, inputs),
    }
    for call in calls.values():
        repl.run(*call)
    count.assign(0.0)
    total.assign(0.0)
    ran, run = [], repl._dispatcher._run

    def spy(batch, iterators):
        ran.append(batch.num_steps)
        run(batch, iterators)

    repl._dispatcher._run = spy
    num_before = len(repl.workers[0].given) + 1
    repl.schedule(hold)
    for name, num_steps in waiting:
        if name == "results":
            assert 3.0 == float(repl.run(one)[0])
        else:
            repl.schedule(*calls[name], num_steps=num_steps)
    repl.join()

    assert [1, *expected] == ran
    assert sum(expected) == float(count)
    assert float(total) == (6.0 if "inputs" in dict(waiting) else 0.0)
    assert 0 == repl.num_redone


def check_fails(repl, step, message, **options):
    with pytest.raises(replicator.WorkerLostError, match=message):
        repl.run(step, **options)
    with pytest.raises(replicator.WorkerLostError, match=message):
        repl.schedule(step)


def test_a_worker_that_does_not_come_back_is_named(make_async):
    repl = make_async(1, 1, recovery_timeout_sec=3.0)  # longer than a first step
    repl.workers[0].comes_back = False

    def lose():
        raise ConnectionError("worker lost")

    check_fails(
        repl,
        lambda: tf.py_function(lose, [], tf.float32),
        r"worker 0 \(localhost:2997\) was lost and did not come back within 3 s; "
        r"restart `python -m replicator.server` there",
    )


@pytest.mark.parametrize("how", ["no progress", "progress that ends", "no response"])
def test_a_first_dispatch_without_progress_says_what_to_set(
    make_async, monkeypatch, how
):
    repl = make_async(1, 1, recovery_timeout_sec=0.3)
    with repl.context():
        weight = tf.Variable([0.0])
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0))
    ended, num_calls = threading.Event(), []
    if how == "no response":
        number = repl._table.commit_states[0].sequence_numbers[0]
        monkeypatch.setattr(number, "numpy", ended.wait)
        monkeypatch.setattr(repl._dispatcher, "answer_sec", 0.2)

    def wait():
        num_calls.append(1)
        if how != "progress that ends" or len(num_calls) > 1:
            ended.wait(WAIT_SEC)
        return tf.ones([1])

    def step():
        gradient = tf.py_function(wait, [], tf.float32)
        optimizer.apply_gradients([(tf.ensure_shape(gradient, [1]), weight)])

    check_fails(
        repl,
        step,
        r"worker 0 \(localhost:2997\) has made no progress in its first steps "
        r"for 0.3 s; this process has \d+ inter-op threads and \d+ cores; .* "
        r"needs 4 threads.*set_inter_op_parallelism_threads\(4\) at the start; "
        r".*recovery_timeout_sec",
        num_steps=9,
    )
    ended.set()


@pytest.mark.parametrize("updates", [True, False])
def test_long_first_steps_are_waited_for(make_async, updates):
    """While servers apply updates, or for each step; what follows has no limit."""
    repl = make_async(1, 1, recovery_timeout_sec=2.5)
    with repl.context():
        weight = tf.Variable([0.0])
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0))
    step_sec = tf.Variable(0.2)

    def wait(sec):
        time.sleep(float(sec))
        return tf.ones([1])

    def step():
        gradient = tf.py_function(wait, [step_sec], tf.float32)
        if updates:
            optimizer.apply_gradients([(tf.ensure_shape(gradient, [1]), weight)])

    repl.run(step, num_steps=14)
    step_sec.assign(2.8)
    repl.run(step)

    assert float(weight[0]) == (-15.0 if updates else 0.0)


def test_a_server_that_hangs_is_named(make_async):
    """In place of TensorFlow's error, and in all later calls."""
    repl = make_async(1, 2)
    watch = repl.connection.watch
    watch._watch.lost["/job:ps/replica:0/task:1"] = ("1", 30.0)
    message = r"parameter server 1 \(localhost:3998\) did not respond for 30 s"

    with (
        pytest.raises(replicator.ServerLostError, match=message) as caught,
        watch.guard(),
    ):
        raise tf.errors.UnavailableError(None, None, "Socket closed")
    assert "Socket closed" in str(caught.value.__cause__)
    with pytest.raises(replicator.ServerLostError, match=message):
        repl.run(lambda: 1.0)
