"""What waits for a worker runs together, and what was lost is done again from where."""

import contextlib
import socket
import threading
import types

import pytest
import tensorflow as tf

from replicator import errors
from replicator._tf import compat as _tf_compat
from replicator.async_training import connection as connection_lib
from replicator.async_training import dispatch
from replicator.async_training.dispatch import Assignment, Dispatcher, make_batch
from replicator.async_training.inputs import Place, WorkerPipelines
from replicator.cluster import liveness
from replicator.cluster.liveness import Peer

PROGRAM, OTHER_PROGRAM = object(), object()
MOST = dispatch.MAX_STEPS_TOGETHER
NOTHING_LOST = types.SimpleNamespace(
    error=None, check=lambda: None, find_lost=lambda: None, explain=lambda _: None
)


def given(num_steps=1, *, program=PROGRAM, keeps_results=False, num_commits=(1, 2)):
    return Assignment(
        worker=0,
        num_steps=num_steps,
        num_commits=num_commits,
        run=lambda *_: None,
        skip=lambda *_: None,
        program=program,
        source=None,
        keeps_results=keeps_results,
    )


@pytest.mark.parametrize(
    ("others", "num_together"),
    [
        ([given(), given(3)], 3),
        ([given(), given(program=OTHER_PROGRAM), given()], 2),
        ([given(), given(keeps_results=True), given()], 2),
        ([given(MOST - 2), given(), given()], 3),
        ([given(MOST), given()], 1),
        ([], 1),
    ],
    ids=["all", "another step", "results", "as many as may", "too many", "alone"],
)
def test_equal_steps_that_wait_run_together(others, num_together):
    """In order, up to the first that differs or is too much."""
    first = given()
    done_before = given()
    queued = [done_before, first, *others]

    batch = make_batch(first, queued, (0, 0))

    assert tuple(queued[1 : 1 + num_together]) == batch.members
    assert [m.batch is batch for m in queued] == [
        1 <= place <= num_together for place in range(len(queued))
    ]


@pytest.mark.parametrize(
    "difference",
    [
        {"worker": 1},
        {"source": object()},
        {"batch": object()},
        {"is_done": True},
        {"keeps_results": True},
        {"program": OTHER_PROGRAM},
    ],
    ids=lambda difference: next(iter(difference)),
)
def test_steps_that_differ_in_anything_run_apart(difference):
    """Or that are in another batch, or done."""
    first, other = given(), given()
    assert other.follows(first)

    for name, value in difference.items():
        setattr(other, name, value)

    assert not other.follows(first)
    # Kept results are those of the last step of a dispatch.
    assert not given().follows(given(keeps_results=True))


def test_sequence_numbers_are_counted_by_server():
    """Two commits of a step on server 1 use two sequence numbers there."""
    first = given(4)
    batch = make_batch(first, [first, given()], (10, 20))

    assert 5 == batch.num_steps
    assert (13, 26) == batch.sequence_numbers_after(3)


@pytest.mark.parametrize(
    ("sequence_numbers", "num_done"),
    [
        ((10, 20), 0),
        ((12, 24), 2),
        ((12, 23), 1),  # server 1 has the first of two commits of step 1
        ((14, 24), 2),
        ((14, 28), 3),  # the last step is run again, for its results
    ],
)
def test_what_is_done_again_begins_where_the_last_server_is(sequence_numbers, num_done):
    """A step counts as done when all servers have all of its commits."""
    first = given(4)
    batch = make_batch(first, [first], (10, 20))

    assert num_done == batch.num_done(sequence_numbers)


def test_steps_without_updates_are_all_done_again():
    """Sequence numbers do not count them."""
    first = given(4, num_commits=(0, 0))

    assert 0 == make_batch(first, [first], (10, 20)).num_done((10, 20))


def test_a_worker_that_does_not_come_back_is_named(monkeypatch):
    monkeypatch.setattr(_tf_compat, "create_on_worker", lambda *_: "handle")
    monkeypatch.setattr(_tf_compat, "remote_state", lambda *_: ("lost", None))
    cluster = types.SimpleNamespace(addresses={"worker": ["localhost:2997"]})
    connection = types.SimpleNamespace(num_workers=1, coordinator=None, cluster=cluster)
    dispatcher = Dispatcher(connection, [], 0.01, "CPU:0", NOTHING_LOST)
    dispatcher.hand_out(given(num_commits=()))
    message = (
        r"worker 0 \(localhost:2997\) was lost and did not come back within 0.01 s; "
        r"restart `python -m replicator.server` there"
    )

    with pytest.raises(errors.WorkerLostError, match=message):
        dispatcher.join()
    with pytest.raises(errors.WorkerLostError, match=message):
        dispatcher.hand_out(given(num_commits=()))


class Slow:
    """A worker whose first dispatch takes a time of a clock that polls move."""

    def __init__(self, monkeypatch, *, ends_after, reads):
        self.now, self.ends_after, self.reads = 0.0, ends_after, reads
        clock = types.SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(dispatch, "time", clock)
        monkeypatch.setattr(connection_lib, "time", clock)
        monkeypatch.setattr(_tf_compat, "create_on_worker", lambda *_: "handle")
        monkeypatch.setattr(_tf_compat, "remote_state", self._poll)
        applied = types.SimpleNamespace(numpy=lambda: self.reads(self.now))
        states = [types.SimpleNamespace(sequence_numbers=[applied])]
        cluster = types.SimpleNamespace(addresses={"worker": ["localhost:2997"]})
        connection = types.SimpleNamespace(
            num_workers=1, coordinator=None, cluster=cluster
        )
        self.dispatcher = Dispatcher(connection, states, 600.0, "CPU:0", NOTHING_LOST)

    def _poll(self, *_):
        self.now += 10.0
        return ("pending" if self.now < self.ends_after else "ready"), None

    def run(self, **options):
        self.dispatcher.hand_out(given(**options))
        self.dispatcher.join()


FOREVER = threading.Event()


@pytest.mark.parametrize(
    "reads",
    [
        lambda _: 0,
        lambda now: int(min(now, 500)),  # one step, and nothing more
        lambda _: FOREVER.wait(),
    ],
    ids=["no progress", "progress that ends", "no response"],
)
def test_a_first_dispatch_without_progress_says_what_to_set(monkeypatch, reads):
    monkeypatch.setattr(connection_lib, "_ANSWER_SEC", 0.5)
    slow = Slow(monkeypatch, ends_after=1e6, reads=reads)
    message = (
        r"worker 0 \(localhost:2997\) has made no progress in its first steps "
        r"for 600 s; this process has \d+ inter-op threads and \d+ cores; .* "
        r"needs 4 threads.*set_inter_op_parallelism_threads\(4\) at the start; "
        r".*recovery_timeout_sec"
    )

    with pytest.raises(errors.WorkerLostError, match=message):
        slow.run(num_steps=9)
    assert slow.now < 2000
    with pytest.raises(errors.WorkerLostError, match=message):
        slow.run()


@pytest.mark.parametrize(
    ("ends_after", "num_steps", "num_commits", "reads"),
    [
        (590.0, 1, (1,), lambda _: 0),
        (5000.0, 9, (1,), int),
        (5000.0, 9, (0,), lambda _: 0),
    ],
    ids=["in time", "servers apply updates", "each step in time"],
)
def test_long_first_steps_are_waited_for(
    monkeypatch, ends_after, num_steps, num_commits, reads
):
    """And whatever follows has no limit."""
    slow = Slow(monkeypatch, ends_after=ends_after, reads=reads)

    slow.run(num_steps=num_steps, num_commits=num_commits)
    slow.ends_after += 1e5
    slow.run(num_commits=num_commits)

    assert slow.dispatcher.is_idle


@pytest.fixture
def server(monkeypatch):
    """A port on which somebody listens who never answers, for which we wait briefly."""
    monkeypatch.setattr(liveness, "_ANSWER_SEC", 0.1)
    with contextlib.closing(socket.create_server(("localhost", 0))) as listener:
        yield f"localhost:{listener.getsockname()[1]}", listener


def watch_over(*addresses):
    """A watch that asks, but has no thread of its own."""
    watch = connection_lib.ServerWatch([])
    watch._addresses = addresses
    watch._peers = [Peer(address) for address in addresses]
    return watch


def test_a_server_that_hangs_is_named(server):
    address, _ = server
    watch = watch_over(address, address)
    watch._watch.lost["/job:ps/replica:0/task:1"] = ("1", 30.0)
    message = r"server 1 \(.*\) did not respond for 30 s"

    with pytest.raises(errors.ServerLostError, match=message) as caught, watch.guard():
        raise tf.errors.UnavailableError(None, None, "Socket closed")
    assert "Socket closed" in str(caught.value.__cause__)


def test_an_error_of_a_step_stays_what_it_is(server):
    watch = watch_over(server[0])

    with pytest.raises(tf.errors.OutOfRangeError), watch.guard():
        raise tf.errors.OutOfRangeError(None, None, "End of sequence")
    watch.check()


class Workers:
    def __init__(self, monkeypatch, num_workers=1):
        self.works, self.runs, self.skips, self.errors = [], [], [], {}
        monkeypatch.setattr(_tf_compat, "create_on_worker", self._create)
        monkeypatch.setattr(_tf_compat, "remote_state", self._state)
        self.commit_states = [
            types.SimpleNamespace(
                sequence_numbers=[tf.Variable(0) for _ in range(num_workers)]
            )
            for _ in range(2)
        ]
        connection = types.SimpleNamespace(num_workers=num_workers, coordinator=None)
        self.dispatcher = Dispatcher(
            connection, self.commit_states, 1.0, "/device:CPU:0", NOTHING_LOST
        )
        self.pipelines = WorkerPipelines(handle="iterators", place=Place())
        self.failing, self.failing_with = False, tf.errors.UnavailableError

    def _create(self, coordinator, worker, function, args):
        del coordinator, worker
        self.works.append(lambda: function(*args))
        return len(self.works) - 1

    def _state(self, handle, _):
        return "ready", self.errors.get(handle)

    def give(self, num_steps=1, **options):
        """Hands out steps that read the pipelines."""
        made = given(num_steps, **options)
        made.source = self.pipelines
        made.run = self._run
        made.skip = lambda iterators, count: self.skips.append((iterators, count))
        self.dispatcher.hand_out(made)
        return made

    def _run(self, iterators, sequence_numbers, num_steps):
        self.runs.append((iterators, tuple(sequence_numbers), num_steps))
        if self.failing:
            raise self.failing_with(None, None, "worker lost")
        return [tf.constant(7)]

    def work(self, index):
        """What the coordinator's thread does with one that was handed out."""
        try:
            self.works[index]()
        except tf.errors.OpError as error:
            self.errors[index] = error
        else:
            self.errors.pop(index, None)


@pytest.fixture
def workers(monkeypatch):
    return Workers(monkeypatch)


def test_what_waits_is_one_dispatch_and_is_not_run_again(workers):
    """The coordinator still calls each; sequence numbers continue from there."""
    members = [workers.give(), workers.give(2)]

    workers.work(0)
    workers.work(1)
    workers.give()
    workers.work(2)

    assert [("iterators", (0, 0), 3), ("iterators", (3, 6), 1)] == workers.runs
    assert all(member.is_done for member in members)
    assert 4 == workers.pipelines.place.num_steps
    workers.dispatcher.join()
    assert workers.dispatcher.is_idle
    assert 0 == workers.dispatcher.num_redone


def test_outputs_are_kept_where_somebody_asks_for_them(workers):
    """The others keep none, on the client or elsewhere."""
    kept, other = workers.give(keeps_results=True), workers.give()

    workers.work(0)
    workers.work(1)

    assert [7] == [int(output) for output in kept.results]
    assert () == other.results


def test_an_error_of_a_batch_is_that_of_all_its_members(workers):
    """And what join requests; nothing waits afterwards."""
    workers.failing = True
    workers.give()
    workers.give()

    workers.work(0)
    workers.work(1)

    assert workers.errors[0] is workers.errors[1]
    with pytest.raises(tf.errors.UnavailableError, match="worker lost"):
        workers.dispatcher.join()
    assert workers.dispatcher.is_idle


def test_a_step_that_raised_has_read_its_batch(workers):
    """Of four, two have committed to both servers: a lost worker skips three."""
    workers.failing, workers.failing_with = True, tf.errors.InvalidArgumentError
    workers.commit_states[0].sequence_numbers[0].assign(2)
    workers.commit_states[1].sequence_numbers[0].assign(5)
    workers.give(4)
    workers.work(0)

    assert 3 == workers.pipelines.place.num_steps
    with pytest.raises(tf.errors.InvalidArgumentError):
        workers.dispatcher.join()


@pytest.mark.parametrize("iterators_are_new", [True, False])
def test_what_failed_continues_after_the_last_step_that_all_servers_have(
    workers, iterators_are_new
):
    """New iterators first drop what was read for the steps that are done."""
    workers.failing = True
    workers.give(4)
    workers.work(0)
    workers.failing = False
    workers.commit_states[0].sequence_numbers[0].assign(2)
    workers.commit_states[1].sequence_numbers[0].assign(5)
    workers.pipelines.place.num_made += iterators_are_new

    workers.work(0)

    assert [("iterators", (0, 0), 4), ("iterators", (2, 4), 2)] == workers.runs
    assert ([("iterators", 2)] if iterators_are_new else []) == workers.skips
    assert 1 == workers.dispatcher.num_redone
    assert 4 == workers.pipelines.place.num_steps


def test_after_a_failure_the_next_steps_ask_the_servers_for_their_sequence_numbers(
    workers,
):
    """Nobody else knows how far the failed one came."""
    workers.failing = True
    workers.give(4)
    workers.work(0)
    with pytest.raises(tf.errors.UnavailableError):
        workers.dispatcher.join()
    workers.failing = False
    workers.commit_states[0].sequence_numbers[0].assign(3)
    workers.commit_states[1].sequence_numbers[0].assign(5)

    workers.give()
    workers.work(1)

    assert ("iterators", (3, 5), 1) == workers.runs[-1]
