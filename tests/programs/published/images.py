"""Programs on images that end in ``fit``, with a loss from Keras."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from published.examples import BATCH, batches, images, labels, results


def convolutional_network(strategy):
    """Two convolutions, pooling, and logits; evaluated at the end."""
    x, y = images(), labels()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(4, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Conv2D(4, 3, activation="relu"),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    history = model.fit(
        x, y, batch_size=BATCH, epochs=2, validation_data=(x, y), verbose=0
    )
    return results(model, history, model.evaluate(x, y, verbose=0))


def image_classification(strategy):
    """A pipeline that is cached and prefetched, and pixels scaled in the model."""
    data = batches(images(channels=3) * 255, labels()).cache().prefetch(2)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                layers.Rescaling(1.0 / 255),
                layers.SeparableConv2D(4, 3, padding="same", use_bias=False),
                layers.BatchNormalization(synchronized=True),
                layers.Activation("relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile(
            "rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
    history = model.fit(data, epochs=2, validation_data=data, verbose=0)
    return results(model, history)


def image_segmentation(strategy):
    """A small U-Net: a class for each pixel, with a weight for each."""
    x, y = images(), labels(2, 8, 8, 1)
    weights = np.where(y == 1, 2.0, 1.0).astype(np.float32)[..., 0]
    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        skip = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
        down = layers.MaxPooling2D()(skip)
        down = layers.Conv2D(4, 3, padding="same", activation="relu")(down)
        up = layers.Conv2DTranspose(4, 3, strides=2, padding="same")(down)
        outputs = layers.Conv2D(2, 1)(layers.Concatenate()([up, skip]))
        model = keras.Model(inputs, outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    history = model.fit(
        x, y, sample_weight=weights, batch_size=BATCH, epochs=2, verbose=0
    )
    return results(model, history, model.predict(x, batch_size=BATCH, verbose=0))


def transfer_learning(strategy):
    """A frozen base and a new head, and then all of it at a low rate."""
    x, y = images(channels=3), labels(2)
    with strategy.scope():
        base = keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                layers.Conv2D(4, 3, activation="relu"),
                layers.GlobalAveragePooling2D(),
            ]
        )
        base.trainable = False
        inputs = keras.Input((8, 8, 3))
        outputs = layers.Dense(1)(base(inputs, training=False))
        model = keras.Model(inputs, outputs)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["binary_accuracy"])
        first = model.fit(x, y, batch_size=BATCH, verbose=0)
        base.trainable = True
        model.compile(keras.optimizers.RMSprop(0.001), loss)
    second = model.fit(x, y, batch_size=BATCH, epochs=2, initial_epoch=1, verbose=0)
    return results(model, first, second)


class Autoencoder(keras.Model):
    """Two parts that are models themselves."""

    def __init__(self, latent_dim=3):
        super().__init__()
        self.encoder = keras.Sequential(
            [layers.Flatten(), layers.Dense(latent_dim, activation="relu")]
        )
        self.decoder = keras.Sequential(
            [layers.Dense(64, activation="sigmoid"), layers.Reshape((8, 8, 1))]
        )

    def call(self, x):
        """What is left of an image."""
        return self.decoder(self.encoder(x))


def autoencoder(strategy):
    """Images are their own targets; both parts are used by themselves then."""
    x = images()
    with strategy.scope():
        model = Autoencoder()
        model.compile(optimizer="adam", loss=keras.losses.MeanSquaredError())
    history = model.fit(
        x,
        x,
        epochs=2,
        batch_size=BATCH,
        shuffle=True,
        validation_data=(x, x),
        verbose=0,
    )
    return results(model, history, model.decoder(model.encoder(x)))


def denoising(strategy):
    """Noisy images, and a network of strided convolutions."""
    x = images()
    noisy = np.clip(x + 0.2 * images(seed=3), 0.0, 1.0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
                layers.Conv2DTranspose(4, 3, strides=2, padding="same"),
                layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
            ]
        )
        model.compile("adam", "binary_crossentropy")
    history = model.fit(noisy, x, epochs=2, batch_size=BATCH, verbose=0)
    return results(model, history)


def anomaly_detection(strategy):
    """Errors of an autoencoder on normal data give the threshold."""
    x = images()[:, :, 0, 0]
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(4, activation="relu"),
                layers.Dense(8, activation="sigmoid"),
            ]
        )
        model.compile(optimizer="adam", loss="mae")
    history = model.fit(x, x, epochs=2, batch_size=BATCH, verbose=0)
    made = model.predict(x, batch_size=BATCH, verbose=0)
    errors = np.mean(np.abs(made - x), axis=-1)
    return results(model, history, np.mean(errors) + np.std(errors))


def super_resolution(strategy):
    """Sub-pixel convolution, and a metric that is a function."""

    def psnr(y_true, y_pred):
        return tf.image.psnr(y_true, y_pred, max_val=1.0)

    y = images()
    x = y[:, ::2, ::2]
    with strategy.scope():
        inputs = keras.Input((4, 4, 1))
        hidden = layers.Conv2D(4, 3, padding="same", activation="tanh")(inputs)
        hidden = layers.Conv2D(4, 3, padding="same")(hidden)
        model = keras.Model(inputs, layers.Lambda(depth_to_space)(hidden))
        model.compile(keras.optimizers.Adam(0.001), "mse", metrics=[psnr])
    history = model.fit(x, y, epochs=2, batch_size=BATCH, verbose=0)
    return results(model, history)


def depth_to_space(x):
    """Four channels become a square of pixels."""
    return tf.nn.depth_to_space(x, 2)


def siamese_network(strategy):
    """One tower for both images of a pair, and a contrastive loss."""

    def contrastive(y_true, y_pred):
        y_true = tf.cast(y_true, y_pred.dtype)
        near = (1 - y_true) * tf.square(y_pred)
        far = y_true * tf.square(tf.maximum(1.0 - y_pred, 0.0))
        return tf.reduce_mean(near + far, axis=-1)

    left, right, y = images(), images(seed=2), labels(2, 1)
    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        hidden = layers.Conv2D(3, 5, activation="tanh")(inputs)
        tower = keras.Model(inputs, layers.Dense(4)(layers.Flatten()(hidden)))
        pair = [keras.Input((8, 8, 1)), keras.Input((8, 8, 1))]
        distance = layers.Lambda(euclidean)([tower(pair[0]), tower(pair[1])])
        model = keras.Model(pair, layers.Dense(1, activation="sigmoid")(distance))
        model.compile("rmsprop", loss=contrastive, metrics=["accuracy"])
    history = model.fit([left, right], y, batch_size=BATCH, epochs=2, verbose=0)
    return results(model, history)


def euclidean(pair):
    """The distance of two rows."""
    squares = tf.reduce_sum(tf.square(pair[0] - pair[1]), axis=1, keepdims=True)
    return tf.sqrt(tf.maximum(squares, 1e-7))


def vision_transformer(strategy):
    """Patches of an image attend to each other; AdamW."""
    x, y = images(), labels()
    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        patches = layers.Conv2D(8, 4, strides=4)(inputs)
        patches = layers.Reshape((4, 8))(patches)
        normed = layers.LayerNormalization()(patches)
        attended = layers.MultiHeadAttention(2, 4, use_bias=False)(normed, normed)
        hidden = layers.Add()([attended, patches])
        hidden = layers.Dense(8, activation="gelu")(layers.LayerNormalization()(hidden))
        outputs = layers.Dense(3)(layers.Flatten()(hidden))
        model = keras.Model(inputs, outputs)
        model.compile(
            optimizer=keras.optimizers.AdamW(0.001, weight_decay=0.0001),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2)],
        )
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    return results(model, history)
