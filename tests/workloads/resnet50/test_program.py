"""ResNet-50 as it is measured: steps, sanity, quality."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import small_programs
import tensorflow as tf

import replicator
from workloads.resnet50 import model
from workloads.resnet50.study import WORKLOAD
from workloads.resnet50.train import GoyalSchedule

if TYPE_CHECKING:
    from workloads.program import TrainingProgram


def _build(backend="single", num_replicas=1, **settings):
    repl = replicator.create(backend, num_replicas=num_replicas)
    return small_programs.build("resnet50", repl, **{"data": "digits", **settings})


@pytest.fixture(scope="module")
def trained():
    """The smoke program after 16 steps, and its losses."""
    # A narrow network learns as much in so few steps at a higher rate.
    program = _build(per_replica_batch_size=8, learning_rate_per_256=1.0)
    return program, [program.run() for _ in range(16)]


@dataclasses.dataclass(frozen=True)
class Dispatched:
    """The smoke program after dispatches of 1, 2 and 3 steps, and what was seen."""

    program: TrainingProgram
    losses: tuple[float, float]
    explained: tuple[int, int]


@pytest.fixture(scope="module")
def dispatched():
    """Made once, since each network is traced for seconds."""
    program = _build()
    first_loss = program.run()
    before = len(program._repl.explain())
    losses = first_loss, program.run(num_steps=2)
    explained = before, len(program._repl.explain())
    program.run(num_steps=3)
    return Dispatched(program, losses, explained)


def test_program_states_its_sizes(trained):
    """All trained scalars, and batch sizes per replica and in all.

    The published number of the whole network is in ``test_recipe.py``.
    """
    program, _ = trained
    variables = program.training.model.trainable_variables

    assert program.num_parameters == sum(math.prod(v.shape) for v in variables)
    assert (program.per_replica_batch_size, program.global_batch_size) == (8, 8)


def test_loss_starts_at_chance_and_falls(trained):
    """The first loss is that of 1000 equally likely classes; steps bring it down."""
    _, history = trained

    assert math.log(1000) == pytest.approx(history[0], abs=0.7)
    assert np.mean(history[-4:]) < history[0] - 2.0


def test_sanity_passes_and_names_its_checks(trained):
    program, _ = trained
    checks = program.sanity()

    assert [check.name for check in checks] == [
        "loss_is_finite",
        "replicas_in_sync",
        "each_training_example_once_per_epoch",
        "no_example_twice_in_an_epoch",
    ]
    assert all(check.is_passed for check in checks), checks
    assert "128 examples in 16 steps of the first epoch" in checks[3].detail


def test_quality_counts_the_whole_held_out_split(trained):
    """Top-1 and top-5 over exactly 359 digits, equal to a count by hand."""
    program, _ = trained
    top_1, top_5 = program.evaluate()
    again, _ = program.evaluate()

    assert (top_1.name, top_5.name) == ("top_1", "top_5")
    assert top_1.num_examples == top_5.num_examples == 359
    assert top_1.low <= top_1.value <= top_1.high
    assert top_1.value <= top_5.value
    assert again == top_1
    assert top_1.value == pytest.approx(_top_1_by_hand(program))


def _top_1_by_hand(program):
    source = program.source
    assert source is not None
    pixels, labels = [], []
    for example in source.builder.as_dataset(split="test").as_numpy_iterator():
        pixels.append(example["image"].repeat(3, axis=-1))
        labels.append(example["label"])
    # Evaluation keeps the whole image, corner on corner.
    resized = tf.image.crop_and_resize(
        np.stack(pixels), [[0.0, 0.0, 1.0, 1.0]] * 359, tf.range(359), [32, 32]
    )
    normalised = (resized / 255.0 - 0.3053) / 0.3760
    logits = program.training.model(normalised, training=False).numpy()
    return float((logits.argmax(axis=1) == np.array(labels)).mean())


def test_sanity_fails_on_a_loss_that_is_not_finite():
    """A diverged run is not a result."""
    program = _build(learning_rate_per_256=1e30)
    for _ in range(3):
        program.run()
    checks = {check.name: check for check in program.sanity()}

    assert not checks["loss_is_finite"].is_passed


def test_first_step_is_momentum_sgd_with_weight_decay():
    """The variables after one step are those of the published update, by hand.

    Velocity starts at zero, so w - lr * (gradient + wd * w).
    """
    program = _build(weight_decay=0.5, learning_rate_per_256=6.4)
    variables = program.training.model.trainable_variables
    before = [v.numpy() for v in variables]
    # A pipeline of its own: a second pass over the program's would be reshuffled.
    pipe = program.training.input_fn(replicator.InputContext())
    batch = next(iter(pipe))
    with tf.GradientTape() as tape:
        logits = program.training.model(batch["image"], training=True)
        loss = tf.reduce_mean(model.softmax_cross_entropy(batch["label"], logits))
    gradients = tape.gradient(loss, [v.value for v in variables])

    assert float(loss) == pytest.approx(program.run(), rel=1e-5)
    # 6.4 * 4 / 256 = 0.1
    for variable, old, gradient in zip(variables, before, gradients, strict=True):
        decay = 0.5 if old.ndim > 1 else 0.0
        expected = old - 0.1 * (gradient.numpy() + decay * old)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-3, atol=1e-5)


def test_learning_rate_follows_the_schedule_without_retracing(dispatched):
    """The optimizer's rate is Goyal's at its own step count; one trace serves all."""
    optimizer = dispatched.program.training.optimizer
    schedule = optimizer.wrapped._learning_rate
    before, after = dispatched.explained

    assert isinstance(schedule, GoyalSchedule)
    assert (schedule.target, schedule.lr_warmup_steps) == (0.1 * 4 / 256, 0)
    assert int(optimizer.iterations) == 6
    assert after == before


def test_many_steps_in_one_call_are_audited(dispatched):
    """run(num_steps=k) records its last step at the right place in the epoch."""
    program = dispatched.program
    checks = {check.name: check for check in program.sanity()}

    assert [4, 12, 24] == [num_consumed for num_consumed, _ in program._consumed]
    assert checks["no_example_twice_in_an_epoch"].is_passed


def test_sanity_passes_over_more_than_an_epoch():
    """Batches that reach into the next epoch may hold an example twice."""
    program = _build(per_replica_batch_size=512)
    losses_of_steps = [program.run() for _ in range(4)]

    assert np.isfinite(losses_of_steps).all()
    assert all(check.is_passed for check in program.sanity()), program.sanity()


def test_same_seed_repeats_the_losses(dispatched):
    """Weights, order and augmentation come from the seed alone."""
    again = _build()
    first, _, third = (again.run() for _ in range(3))

    np.testing.assert_allclose(dispatched.losses, (first, third), rtol=1e-5)


def test_synthetic_data_has_no_quality_and_no_example_audit():
    """Pure compute: steps run, nothing is claimed about examples."""
    program = _build(data="synthetic")

    assert math.isfinite(program.run())
    assert program.evaluate() == ()
    assert ["loss_is_finite", "replicas_in_sync"] == [
        check.name for check in program.sanity()
    ]


def test_mixed_precision_trains(dispatched):
    mixed = _build(compute_dtype="mixed_bfloat16")

    assert dispatched.losses[0] == pytest.approx(mixed.run(), rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "tiny"}, r"preset 'tiny' is unknown to resnet50: allowed are 'smo"),
        ({"data": "digit"}, r"data 'digit' is unknown.*did you mean 'digits'"),
        ({"data": "mnist"}, r"data 'mnist' is not prepared .*tfds build mnist"),
        ({"per_replica_batch_size": 0}, r"per_replica_batch_size 0 must be at least 1"),
        ({"options": {"num_classes": 3}}, r"has 10 classes, but the network has 3"),
        ({"options": {"depth": 18}}, r"option 'depth' is unknown to resnet50"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message):
    good = {
        "preset": "smoke",
        "data": "digits",
        "per_replica_batch_size": 4,
        "seed": 0,
        "options": {},
    }

    with pytest.raises(ValueError, match=message) as raised:
        WORKLOAD.build(
            replicator.create("single", num_replicas=1), **{**good, **arguments}
        )
    assert "\n" not in str(raised.value)


def test_sanity_fails_when_replicas_differ(trained, monkeypatch):
    program, _ = trained

    def raise_out_of_sync():
        raise replicator.ReplicatorError("copies of 'kernel' differ")

    monkeypatch.setattr(program._repl, "assert_in_sync", raise_out_of_sync)
    checks = {check.name: check for check in program.sanity()}

    assert not checks["replicas_in_sync"].is_passed
    assert checks["replicas_in_sync"].detail == "copies of 'kernel' differ"


def test_sanity_fails_when_two_replicas_get_one_batch(trained, monkeypatch):
    """A backend that feeds the same batch twice is caught from the consumed ids."""
    program, _ = trained
    num_consumed, ids = program._consumed[0]
    twice = replicator.PerReplica([ids[0], ids[0]])
    monkeypatch.setattr(program, "_consumed", [(num_consumed, twice)])
    checks = {check.name: check for check in program.sanity()}

    assert not checks["no_example_twice_in_an_epoch"].is_passed


@pytest.mark.full
def test_backends_agree_on_two_replicas():
    """Two replicas learn the same from the same batches, ours and the stock peer."""
    found = {}
    for backend in ("tf_mirrored", "in_graph"):
        program = _build(backend, 2, seed=2)
        losses_of_steps = [program.run() for _ in range(3)]
        facts = (
            program.global_batch_size,
            [check.name for check in program.sanity() if not check.is_passed],
            [metric.num_examples for metric in program.evaluate()],
        )
        found[backend] = losses_of_steps, facts
    losses_ours, facts_ours = found["in_graph"]
    losses_stock, facts_stock = found["tf_mirrored"]

    assert facts_ours == facts_stock == (8, [], [359, 359])
    # The first loss is before any update; later ones part by rounding.
    assert losses_stock == pytest.approx(losses_ours, rel=1e-3)
