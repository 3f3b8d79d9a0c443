"""What a manager writes, keeps and says of it, and what it refuses to read or save."""

import pathlib
import resource

import keras
import numpy as np
import pytest
import tensorflow as tf
from cluster_member import check_message, check_messages

import replicator


def _weights_only(directory, units=3, **options):
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])
    return model, repl.make_checkpoint_manager(directory, model=model, **options)


def test_the_checkpoint_of_another_model_is_refused_with_the_differences(tmp_path):
    _, manager = _weights_only(tmp_path)
    manager.save(7)
    model, wider = _weights_only(tmp_path, units=5)
    before = [w.copy() for w in model.get_weights()]

    check_message(
        r"^CheckpointMismatchError: .*ckpt-1' \(step 7, in_graph, 2 replicas\) belongs "
        r"to another model: 'model/.*kernel' is float32\[2, 3\] in the checkpoint but "
        r"float32\[2, 5\] here; 'model/.*/bias' is float32\[3\] in the checkpoint but "
        r"float32\[5\]",
        wider.restore,
    )
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)

    repl = replicator.create("single")
    other = repl.make_checkpoint_manager(tmp_path, model=tf.Variable([1.0]))
    check_message(
        r"^CheckpointMismatchError: .*'model' \(float32\[1\]\) is not in the checkpoint"
        "; 'model/.*not here",
        other.restore,
    )


def test_metadata_says_who_saved_what(tmp_path):
    _, manager = _weights_only(tmp_path)
    path = pathlib.Path(manager.save(7))
    first = manager.read_metadata()
    _weights_only(tmp_path, units=5)[1].save(8)
    second = manager.read_metadata()
    manager.save(9)

    facts = (first.backend, first.num_replicas, first.num_workers, first.step)
    assert ("in_graph", 2, 1, 7) == facts
    assert tf.__version__ == first.tensorflow_version
    assert first.library_version
    assert first.digest == manager.read_metadata().digest != second.digest
    assert 7 == manager.read_metadata(path).step == manager.restore(path).step
    for name in ("restore", "read_metadata"):
        check_message(
            rf"^TypeError: {name}\(path\) must be a path, but got 7; ",
            lambda name=name: getattr(manager, name)(7),
        )


def test_there_is_nothing_to_restore_before_the_first_save(tmp_path):
    _, manager = _weights_only(tmp_path / "new")

    assert manager.restore() is None
    assert manager.latest_checkpoint is None
    check_messages(
        {
            "^CheckpointError: .*'nowhere' could not be read": lambda: manager.restore(
                "nowhere"
            ),
            "^CheckpointError: .*new' contains no checkpoint": manager.read_metadata,
        }
    )


@pytest.mark.parametrize(
    ("part", "num_kept"), [("index", 0), ("data-*", -40)], ids=["lost", "cut off"]
)
def test_lost_or_damaged_files_are_an_error(tmp_path, part, num_kept):
    _, manager = _weights_only(tmp_path)
    path = manager.save(1)
    (file,) = tmp_path.glob(f"ckpt-1.{part}")
    kept = file.read_bytes()[:num_kept]
    file.write_bytes(kept) if kept else file.unlink()

    for of in (None, path):
        check_message(
            "^CheckpointError: .*ckpt-1' could not be read.*damaged",
            lambda of=of: manager.restore(of),
        )


def test_a_plain_checkpoint_is_recognized_and_ours_loads_plainly(tmp_path):
    model, manager = _weights_only(tmp_path / "ours")
    ours = manager.save(1)
    other, _ = _weights_only(tmp_path)
    tf.train.Checkpoint(model=other).read(ours).assert_existing_objects_matched()
    plain = tf.train.Checkpoint(model=model).write(str(tmp_path / "plain"))

    np.testing.assert_array_equal(model.get_weights()[0], other.get_weights()[0])
    check_message(
        "^CheckpointError: .*plain' was not written by make_checkpoint_man",
        lambda: manager.restore(plain),
    )


def test_inputs_need_a_checkpoint_with_a_position(tmp_path):
    _weights_only(tmp_path)[1].save(1)
    repl = replicator.create("in_graph", num_replicas=2)
    inputs = repl.make_input_iterator(lambda _: tf.data.Dataset.range(4))
    with repl.context():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    manager = repl.make_checkpoint_manager(tmp_path, inputs=inputs, model=model)

    check_message(
        "^CheckpointMismatchError: .*has no input position.*inputs=None",
        manager.restore,
    )


def test_old_checkpoints_are_deleted_and_numbers_never_used_twice(tmp_path):
    _, manager = _weights_only(tmp_path, max_to_keep=2)
    for step in range(3):
        manager.save(step)
    manager.restore(manager.checkpoints[0])
    manager.save(1)

    names = [pathlib.Path(path).name for path in manager.checkpoints]
    assert ["ckpt-3", "ckpt-4"] == names
    assert {"ckpt-3.index", "ckpt-4.index"} == {p.name for p in tmp_path.glob("*.ind*")}


def test_a_full_disk_is_one_clear_line_and_the_last_good_one_stays(tmp_path):
    """A limit on file size stands for the disk: 4 MB of weights do not fit 1 MB."""
    repl = replicator.create("single")
    with repl.context():
        weight = tf.Variable(tf.ones([1_000_000]))
    manager = repl.make_checkpoint_manager(tmp_path, weight=weight)
    good = manager.save(1)
    weight.assign(tf.zeros_like(weight))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        check_message(
            "^CheckpointError: .*ckpt-2' could not be written: .*; the latest valid "
            "checkpoint is '.*ckpt-1'; free space",
            lambda: manager.save(2),
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    blocked = repl.make_checkpoint_manager(tmp_path / "file", weight=weight)
    check_message(
        "^CheckpointError: .*file/ckpt-1' could not be written: .*there is no earlier "
        "checkpoint; ",
        lambda: blocked.save(1),
    )
    assert good == manager.latest_checkpoint
    assert [] == list(tmp_path.glob("ckpt-2.*"))
    manager.restore()
    assert 1.0 == float(weight[0])
    weight.assign(2 * weight)
    assert str(tmp_path / "ckpt-2") == manager.save(2)


def test_what_cannot_be_saved_is_refused_at_once(tmp_path):
    make = replicator.create("single").make_checkpoint_manager
    number = tf.Variable(0)
    check_messages(
        {
            "^TypeError: rate=0.1 cannot be saved: it is a 'float'.*ts$": lambda: make(
                tmp_path, rate=0.1
            ),
            "^TypeError: .*'list'; .*, and each item of a list by a name": lambda: make(
                tmp_path, stages=[]
            ),
            "^ValueError: .*got nothing to save; pass for example": lambda: make(
                tmp_path
            ),
            r"^TypeError: make_checkpoint_manager\(directory\) must be a path, but got "
            "1": lambda: make(1, x=number),
            "^ValueError: 'save_counter' is reserved: checkpoints": lambda: make(
                tmp_path, save_counter=number
            ),
            "^ValueError: max_to_keep 0 must be an integer of at least 1": lambda: make(
                tmp_path, max_to_keep=0, x=number
            ),
        }
    )


def test_steps_are_counted_by_the_optimizer_or_by_the_caller(tmp_path):
    repl = replicator.create("single")
    one = keras.optimizers.SGD(0.1)
    manager = repl.make_checkpoint_manager(tmp_path, optimizer=one)
    one.iterations.assign(12)
    manager.save()
    assert 12 == manager.read_metadata().step

    other = repl.wrap_optimizer(keras.optimizers.SGD(0.1))
    both = repl.make_checkpoint_manager(tmp_path, generator=one, discriminator=other)
    check_messages(
        {
            r"^ValueError: .*have 2 optimizers \(discriminator, generator\)": both.save,
            "^ValueError: step -1 must be an integer of at least 0": lambda: both.save(
                -1
            ),
        }
    )
