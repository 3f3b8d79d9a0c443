"""KerasTuner: a search, each of whose trials trains on all replicas."""

import tempfile

import keras
import keras_tuner

from communities.data import GLOBAL_BATCH, regression


def build_model(hyperparameters):
    keras.utils.set_random_seed(1)
    width = hyperparameters.Choice("width", [4, 8])
    rate = hyperparameters.Choice("rate", [0.1, 0.01])
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(rate), "mse")
    return model


def train(strategy):
    x, y = regression()
    with tempfile.TemporaryDirectory() as folder:
        tuner = keras_tuner.GridSearch(
            build_model,
            objective="val_loss",
            distribution_strategy=strategy,
            directory=folder,
        )
        tuner.search(
            x, y, batch_size=GLOBAL_BATCH, epochs=2, validation_data=(x, y), verbose=0
        )
        trials = tuner.oracle.get_best_trials(4)
    return [trial.score for trial in trials]
