"""A small compiled model, for what does not depend on the size of a network."""

import keras


def small():
    """A convolution, batch norm and dropout on images of 32 pixels."""
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(4, 3, strides=4, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def not_compiled():
    """Without ``compile``."""
    return keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten()])


def of_larger_images():
    """Of 64 pixels."""
    model = keras.Sequential([keras.Input((64, 64, 3)), keras.layers.Flatten()])
    model.compile("sgd", "mse")
    return model
