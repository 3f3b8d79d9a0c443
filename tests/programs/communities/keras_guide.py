"""Keras: a functional model, callbacks, a validation split, then ``evaluate``."""

import keras

from communities.data import GLOBAL_BATCH, regression, weights_of


def train(strategy):
    """Two lines are the strategy's: its making, and this ``with``."""
    x, y = regression()
    with strategy.scope():
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(6, activation="relu")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])

    history = model.fit(
        x,
        y,
        batch_size=GLOBAL_BATCH,
        epochs=2,
        validation_split=0.25,
        callbacks=[keras.callbacks.ReduceLROnPlateau(patience=1)],
        verbose=0,
    )
    score = model.evaluate(x, y, batch_size=GLOBAL_BATCH, verbose=0)
    return [*history.history.values(), score, *weights_of(model)]
