"""The language model: presets, mathematics, dropout, quality, stages of a pipeline."""

import math

import numpy as np
import pytest
import small_programs
import tensorflow as tf

import replicator
from workloads import WORKLOADS

LENGTH = 6
SMALL = {**small_programs.OPTIONS["transformer"], "sequence_length": LENGTH}
# Sums of float32 in another order.
TOLERANCE = 1e-5


def build(repl="single", *, sequences=2, **options):
    size = sequences * LENGTH
    options = {"per_replica_batch_size": size, **SMALL, **options}
    return small_programs.build("transformer", repl, **options)


@pytest.fixture(scope="module")
def model():
    return build(num_layers=2).training.model


@pytest.fixture(scope="module")
def tokens():
    return tf.constant(np.random.default_rng(0).integers(1, 256, [3, LENGTH]), tf.int64)


def weights_of(preset, num_replicas=1, **options):
    """Numbers in float32 that each replica owns on each of its devices."""
    held = WORKLOADS["transformer"].held(preset, options, num_replicas=num_replicas)
    return [own.weights // 4 for own in held]


@pytest.mark.parametrize(
    ("preset", "millions"),
    [("smoke", 1.07), ("laptop", 10.0), ("gpu", 353), ("paper", 6043)],
)
def test_presets_have_the_sizes_that_they_are_named_for(preset, millions):
    made = WORKLOADS["transformer"].make_config(preset, {})
    (info,) = [p for p in WORKLOADS["transformer"].presets if p.name == preset]

    assert millions == pytest.approx(sum(weights_of(preset)) / 1e6, rel=5e-3)
    assert 0 == info.per_replica_batch_size % made.sequence_length
    assert (0.1 if preset == "paper" else 0.0) == made.dropout


def test_a_byte_is_predicted_from_those_before_it(model, tokens):
    changed = tokens.numpy()
    changed[:, 3] = (changed[:, 3] + 1) % 256
    before, after = (
        model(values).numpy().reshape(3, LENGTH, 256)
        for values in (tokens, tf.constant(changed))
    )

    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any(axis=-1).all()


def test_attention_is_that_of_the_formula(model, tokens):
    block = model.blocks[0]
    x = block.attention_norm(model.embedding(tokens)).numpy()
    query, key, value, output = (p.kernel.numpy() for p in block.projections)
    size = SMALL["width"] // SMALL["num_heads"]
    expected = np.zeros_like(x)
    for rows in np.split(np.arange(len(x)), 3):
        heads = []
        for head in range(SMALL["num_heads"]):
            part = slice(head * size, (head + 1) * size)
            q, k, v = (x[rows] @ matrix[:, part] for matrix in (query, key, value))
            scores = np.where(np.tri(LENGTH), q @ k.T / math.sqrt(size), -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads.append(weights / weights.sum(axis=1, keepdims=True) @ v)
        expected[rows] = np.concatenate(heads, axis=1) @ output

    np.testing.assert_allclose(block._attend(tf.constant(x)), expected, atol=TOLERANCE)
    # A sine and a cosine in turn, of wavelengths from 2 pi to 10,000 times that.
    angles = [3 * 10_000 ** (-place / SMALL["width"]) for place in (0, 2, 4, 6)]
    waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
    np.testing.assert_allclose(model.embedding._positions[3, :8], waves, rtol=1e-6)


def test_the_learning_rate_rises_and_falls():
    options = {"learning_rate_factor": 2.0, "lr_warmup_steps": 100}
    program = build(**options)
    optimizer = program.training.optimizer.wrapped
    peak, rates = 2.0 / math.sqrt(16 * 100), []
    for step in (0, 99, 399):
        optimizer.iterations.assign(step)
        rates.append(float(optimizer.learning_rate))

    assert [peak / 100, peak, peak / 2] == pytest.approx(rates)


def test_a_seed_drops_the_same_values_again(model, tokens):
    dropping = build(dropout=0.25, num_layers=2)
    layer = dropping.training.model.embedding
    many = tf.tile(tokens, [100, 1])

    def kept(*seed):
        values = layer(many, tf.constant(seed)) / layer(many)
        return values.numpy().ravel().round(5)

    first, again, other = kept(3, 4), kept(3, 4), kept(3, 5)

    np.testing.assert_array_equal(first, again)
    assert {0.0, np.float32(1 / 0.75).round(5)} == set(first)
    assert 0.25 == pytest.approx((first == 0).mean(), abs=0.03)
    assert 0.3 < (first != other).mean() < 0.45
    # So it is in each layer, which drops other values.
    seed = tf.constant([3, 4])
    vectors = layer(many)
    one, two = (
        (block(vectors, seed) - vectors).numpy() == 0
        for block in _attending(dropping.training.model.blocks)
    )
    assert 0.25 == pytest.approx(one.mean(), abs=0.03)
    assert 0.3 < (one != two).mean() < 0.45
    np.testing.assert_array_equal(model(tokens), model(tokens, seed))  # at rate 0


def _attending(blocks):
    """Blocks whose feed-forward networks add nothing to what attention adds."""
    for block in blocks:
        block.contract.kernel.assign(tf.zeros_like(block.contract.kernel))
        yield block


def test_text_is_learned_and_scored_by_files():
    options = {"sequences": 16, "learning_rate_factor": 0.5}
    program = build(data="tensorflow_source", **options)
    (untrained,) = program.evaluate()
    first = program.run()
    losses = [program.run() for _ in range(40)]
    (trained,) = program.evaluate()
    checks = small_programs.sane(program)

    assert math.log(256) == pytest.approx(first, rel=0.1)
    assert np.mean(losses[-5:]) < first - 1
    assert 8 == pytest.approx(untrained.value, rel=0.1)
    assert trained.high < untrained.low
    assert 2 <= trained.num_examples < 64
    assert "over groups of the 64 examples" in trained.method
    assert "SHA-256" in checks["text_is_that_of_the_wheel"].detail
    assert 16 * 41 == sum(len(ids) for _, (ids,) in program._consumed)


def on_mesh():
    return replicator.create(
        "dtensor",
        **WORKLOADS["transformer"].on_mesh(1, 2),
        devices=["CPU:0", "CPU:1"],
    )


def test_a_mesh_trains_and_scores_like_one_device():
    """Heads and hidden units are halved: per block four sums, as Megatron has them."""
    found = []
    for repl in (replicator.create("single"), on_mesh()):
        program = build(repl, data="tensorflow_source", mesh="1x2")
        losses = [program.run() for _ in range(4)]
        found.append([*losses, program.evaluate()[0].value])

    np.testing.assert_allclose(found[1], found[0], rtol=TOLERANCE)
    assert "expand/kernel" in repl.summary()
    assert 4 == repl.counts()["collectives"]


PARTS = 2
# Of two layers on one device; they change with initial values, layers and updates.
GOLDEN_LOSSES = (5.578306, 5.565536, 5.540379, 5.503852)


def train(repl, **options):
    program = build(repl, sequences=4, num_layers=2, **options)
    return [program.run() for _ in range(4)], program


def split(num_replicas, num_stages, **options):
    return replicator.create(
        "in_graph",
        num_replicas=num_replicas,
        devices=[f"CPU:{i}" for i in range(num_replicas * num_stages)],
        logical_devices_per_replica=num_stages,
        **options,
    )


@pytest.fixture(scope="module")
def in_one_piece():
    losses, program = train(replicator.create("single"))
    return losses, program.training.model.get_weights()


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"schedule": "fill_drain"}, marks=pytest.mark.full)],
    ids=["1F1B", "fill-drain"],
)
def test_stages_train_like_one_device(in_one_piece, options):
    losses, program = train(
        split(1, 2), pipeline_stages=2, num_microbatches=PARTS, **options
    )

    assert list(GOLDEN_LOSSES) == pytest.approx(in_one_piece[0], rel=1e-4)
    np.testing.assert_allclose(losses, in_one_piece[0], rtol=TOLERANCE)
    for found, expected in zip(
        program.training.model.get_weights(), in_one_piece[1], strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=TOLERANCE)
    assert ["CPU:0", "CPU:1"] == [
        part.trainable_variables[0].value.device[-5:]
        for part in (program.training.model.embedding, program.training.model.head)
    ]
    assert "stage 1     F0 B0 F1 B1" in program.explain() or options
    stages = {**SMALL, "num_layers": 2, "pipeline_stages": 2}
    assert sum(weights_of("smoke", **stages)) == program.num_parameters


def test_stages_with_sharded_gradients_train_like_whole_replicas():
    repl = split(2, 2, variable_placement="mirrored")
    options = {"pipeline_stages": 2, "sharded_update": "gradients"}
    losses, _ = train(repl, num_microbatches=PARTS, **options)
    whole, _ = train(split(2, 1))

    np.testing.assert_allclose(losses, whole, rtol=TOLERANCE)
    assert "fullest of 4 devices" in repl.summary()
    # What the planner says before anything is built.
    options = {**SMALL, "num_layers": 2, **options}
    held = WORKLOADS["transformer"].held("smoke", options, num_replicas=2)
    assert sorted(repl._table.ownership.held()) == sorted(map(tuple, held))


def test_each_micro_batch_drops_other_values(in_one_piece):
    losses, _ = train(
        split(1, 2),
        pipeline_stages=2,
        num_microbatches=PARTS,
        dropout=0.5,
        recompute=True,
    )
    assert np.isfinite(losses).all()
    assert np.abs(np.array(losses) - in_one_piece[0]).min() > 1e-4


def test_the_largest_stage_has_as_little_to_compute_as_it_can():
    """Of an embedding, eight blocks and a head in 1, 3 and 5 stages."""
    (whole,), three, five = (weights_of("laptop", pipeline_stages=n) for n in (1, 3, 5))
    block = five[1] // 2
    embedding, head = five[0] - block, five[4] - block

    assert [embedding + block, *[2 * block] * 3, block + head] == five
    assert [embedding + 3 * block, 3 * block, 2 * block + head] == three
    assert whole == embedding + 8 * block + head
    assert 256 * 320 == embedding
