"""Batches: as documented, by the seed alone, each held-out example once."""

import dataclasses

import numpy as np
import tensorflow as tf

from workloads.data import pipeline


def test_batches_are_as_documented(digits, contexts, make_config):
    """Shapes and types are static, pixels are normalised, labels are digits."""
    batch = next(iter(pipeline.train_dataset(digits, contexts(1)[0], make_config())))

    assert batch["image"].shape == (8, 32, 32, 3)
    assert (batch["image"].dtype, batch["label"].dtype) == (tf.float32, tf.int32)
    assert abs(float(tf.reduce_mean(batch["image"]))) < 0.5
    assert 0.5 < float(tf.math.reduce_std(batch["image"])) < 1.5


def test_augmented_digit_keeps_its_label(digits, contexts, make_config):
    """Ids join augmented batches to the stored labels and pixels."""
    stored = {}
    for batch in pipeline.evaluation_dataset(
        dataclasses.replace(digits, evaluation_split="train"), make_config()
    ):
        for row, example_id in enumerate(batch["example_id"].numpy()):
            stored[example_id] = (batch["image"][row], batch["label"][row])
    batch = next(iter(pipeline.train_dataset(digits, contexts(1)[0], make_config())))
    for row, example_id in enumerate(batch["example_id"].numpy()):
        image, label = stored[example_id]
        flat = [tf.reshape(i, [-1]).numpy() for i in (image, batch["image"][row])]

        assert int(label) == int(batch["label"][row])
        assert np.corrcoef(*flat)[0, 1] > 0.3


def test_seed_determines_order_and_augmentation(digits, contexts, make_config):
    """The same seed gives the same batches over an epoch's end; another one others."""

    def batches(seed, count):
        config = make_config(seed=seed, per_replica_batch_size=32)
        dataset = pipeline.train_dataset(digits, contexts(1)[0], config)
        return list(dataset.take(count).as_numpy_iterator())

    first, again, (other,) = batches(5, 50), batches(5, 50), batches(6, 1)

    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a["example_id"], b["example_id"])
        np.testing.assert_array_equal(a["image"], b["image"])
    assert (first[0]["example_id"] != other["example_id"]).any()
    ids = np.concatenate([batch["example_id"] for batch in first])
    assert len(set(ids[:1438])) == 1438
    assert (ids[:100] != ids[1438:1538]).any()


def test_threads_do_not_change_batches(digits, contexts, make_config):
    """Parallel maps keep the order, so threads are no part of a result."""
    context = contexts(1)[0]
    one = pipeline.train_dataset(digits, context, make_config())
    four = pipeline.train_dataset(digits, context, make_config(num_threads=4))
    for a, b in zip(one.take(5), four.take(5), strict=True):
        np.testing.assert_array_equal(a["image"], b["image"])
        np.testing.assert_array_equal(a["example_id"], b["example_id"])


def test_evaluation_counts_each_held_out_example_once(digits, make_config):
    """The filling of the last batch is marked; 359 examples remain."""
    batches = list(
        pipeline.evaluation_dataset(digits, make_config(per_replica_batch_size=64))
    )
    ids = [
        int(example_id)
        for batch in batches
        for example_id, is_example in zip(
            batch["example_id"], batch["is_example"], strict=True
        )
        if is_example
    ]

    assert {(64, 32, 32, 3)} == {tuple(batch["image"].shape) for batch in batches}
    assert (len(ids), len(set(ids))) == (359, 359)


def test_synthetic_batches_are_cached(make_config):
    """Synthetic data is one batch again and again, with ids that say so."""
    dataset = pipeline.synthetic_dataset(make_config(), num_classes=1000)
    first, second = dataset.take(2)

    np.testing.assert_array_equal(first["image"], second["image"])
    assert set(first["example_id"].numpy()) == {-1}
    assert 10 < int(tf.reduce_max(first["label"])) < 1000
