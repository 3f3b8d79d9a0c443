"""Keras' own saving of a wrapped optimizer, against the same program without replicas.

What is saved here is loaded plain, and the other way round, to the last bit.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import CollectiveContextError, OptimizerOptionError

X = np.random.RandomState(0).randn(8, 3).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
ROUNDING = 1e-6


def _adam():
    return keras.optimizers.Adam(0.05)


def _made(repl=None, *, optimizer=_adam, **options):
    keras.utils.set_random_seed(1)
    with contextlib.nullcontext() if repl is None else repl.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        inner = optimizer()
        model.compile(
            inner if repl is None else repl.wrap_optimizer(inner, **options), "mse"
        )
    return model


def _fit(model, *, epochs=1, **options):
    model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, **options)
    return model


def _state(model):
    own = {id(variable) for variable in _state_of_options(model).values()}
    found = [v for v in model.optimizer.variables if id(v) not in own]
    return [value.numpy() for value in [*model.weights, *found]]


def _state_of_options(model):
    found = getattr(model.optimizer, "options_state", None)
    return {k: v.variable for k, v in found.entries.items()} if found else {}


def _assert_equal(expected, found, **tolerance):
    for one, other in zip(_state(expected), _state(found), strict=True):
        np.testing.assert_allclose(other, one, **{"rtol": 0, **tolerance})


@pytest.fixture
def repl():
    return replicator.create("in_graph", num_replicas=2)


def test_compile_takes_it_and_fit_equals_plain(repl):
    def optimizer():
        return keras.optimizers.AdamW(0.05, use_ema=True, ema_momentum=0.5)

    plain = _fit(_made(optimizer=optimizer), epochs=2)
    model = _fit(_made(repl, optimizer=optimizer), epochs=2)

    assert isinstance(model.optimizer, replicator.ReplicatedOptimizer)
    assert isinstance(model.optimizer, keras.optimizers.AdamW)
    assert keras.optimizers.get(model.optimizer) is model.optimizer
    _assert_equal(plain, model, rtol=1e-5, atol=ROUNDING)
    averages = model.optimizer.wrapped._model_variables_moving_average
    for weight, average in zip(model.trainable_weights, averages, strict=True):
        np.testing.assert_array_equal(weight.numpy(), average.numpy())


@pytest.mark.parametrize("is_saved_here", [True, False], ids=["here", "plain"])
def test_weights_are_loaded_by_who_has_not_saved_them(repl, tmp_path, is_saved_here):
    models = [_made(repl, accumulation_steps=2, loss_scale="dynamic"), _made()]
    saved, loaded = models if is_saved_here else reversed(models)
    path = tmp_path / "some.weights.h5"

    _fit(saved).save_weights(path)
    loaded.optimizer.build(loaded.trainable_variables)
    loaded.load_weights(path)

    _assert_equal(saved, loaded)
    assert int(loaded.optimizer.iterations)


@pytest.mark.parametrize("is_saved_here", [True, False], ids=["here", "plain"])
def test_models_are_loaded_by_who_has_not_saved_them(repl, tmp_path, is_saved_here):
    path = tmp_path / "model.keras"
    saved = _fit(_made(repl if is_saved_here else None))

    saved.save(path)
    with repl.scope():
        loaded = keras.models.load_model(path)
        assert keras.optimizers.Adam is type(loaded.optimizer)
        assert saved.optimizer.get_config() == loaded.optimizer.get_config()
        loaded.compile(repl.wrap_optimizer(loaded.optimizer), "mse")

    _assert_equal(saved, loaded)
    _assert_equal(_fit(saved), _fit(loaded), rtol=1e-5, atol=ROUNDING)


def test_backup_and_restore_goes_on_where_it_was(repl, tmp_path):
    """As if nothing had happened, in the middle of an accumulation too."""
    options = {"accumulation_steps": 3, "loss_scale": "dynamic"}

    class StoppedError(Exception):
        """Something that ends a training."""

    def stop(epoch, _):
        if epoch == 2:
            raise StoppedError

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path)

    whole = _fit(_made(repl, **options), epochs=4)
    end = keras.callbacks.LambdaCallback(on_epoch_begin=stop)
    with pytest.raises(StoppedError):
        _fit(_made(repl, **options), epochs=4, callbacks=[backup(), end])
    resumed = _fit(_made(repl, **options), epochs=4, callbacks=[backup()])

    _assert_equal(whole, resumed)
    found = _state_of_options(resumed)
    for name, variable in _state_of_options(whole).items():
        np.testing.assert_array_equal(found[name].numpy(), variable.numpy(), name)


def test_options_start_anew_from_a_plain_file(repl, tmp_path):
    path = tmp_path / "some.weights.h5"
    _fit(_made()).save_weights(path)
    model = _fit(_made(repl, accumulation_steps=3, loss_scale="dynamic"))
    count = model.optimizer.accumulation.count
    model.optimizer.loss_scale.scale.assign(4.0)
    assert 2 == int(count)

    model.load_weights(path)

    assert 0 == int(count)
    assert 2.0**15 == float(model.optimizer.loss_scale.scale)


def test_a_module_without_compile_is_saved_with_its_state(repl, tmp_path):
    path = tmp_path / "some.weights.h5"
    with repl.context():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1, 0.9))
    model.optimizer.build(model.trainable_variables)
    model.optimizer.momentums[0].assign(tf.ones([3, 1]))
    model.save_weights(path)
    model.optimizer.momentums[0].assign(tf.zeros([3, 1]))

    model.load_weights(path)

    assert [1.0] * 3 == model.optimizer.momentums[0].numpy()[:, 0].tolist()


def test_fit_outside_the_scope_says_what_to_write(repl):
    with repl.context():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(repl.wrap_optimizer(_adam()), "mse")

    with pytest.raises(CollectiveContextError, match=r"with repl\.scope\(\):"):
        _fit(model)


def test_sums_of_each_replica_are_not_saved_half(separate, tmp_path):
    model = _made(separate(2), accumulation_steps=3)
    path = tmp_path / "some.weights.h5"

    with pytest.raises(OptimizerOptionError, match=r"of 2 calls .*_checkpoint_manager"):
        _fit(model).save_weights(path)
    model.train_on_batch(X, Y)
    model.save_weights(path)

    assert path.exists()
