"""tf_keras, which is Keras 2: a subclassed model, built by ``fit``."""

import tf_keras

from communities.data import GLOBAL_BATCH, regression, weights_of


class Regressor(tf_keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = tf_keras.layers.Dense(
            6, activation="relu", kernel_regularizer="l2"
        )
        self.outputs = tf_keras.layers.Dense(1)

    def call(self, x):
        return self.outputs(self.hidden(x))


def train(strategy):
    tf_keras.utils.set_random_seed(1)
    x, y = regression()
    with strategy.scope():
        model = Regressor()
        optimizer = tf_keras.optimizers.Adam(0.01, global_clipnorm=0.5)
        model.compile(optimizer, "mse", metrics=["mae"])
    history = model.fit(
        x, y, batch_size=GLOBAL_BATCH, epochs=2, validation_data=(x, y), verbose=0
    )
    predicted = model.predict(x, batch_size=GLOBAL_BATCH, verbose=0)
    return [*history.history.values(), predicted, *weights_of(model)]
