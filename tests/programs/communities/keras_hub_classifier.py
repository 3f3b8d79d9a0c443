"""KerasHub: a small encoder of texts, and its task of classification."""

import keras
import keras_hub
import numpy as np

from communities.data import GLOBAL_BATCH, NUM_EXAMPLES

LENGTH = 5


def train(strategy):
    keras.utils.set_random_seed(1)
    numbers = np.random.default_rng(0)
    shape = NUM_EXAMPLES, LENGTH
    features = {
        "token_ids": numbers.integers(1, 20, shape),
        "segment_ids": np.zeros(shape, np.int32),
        "padding_mask": np.ones(shape, np.int32),
    }
    labels = features["token_ids"][:, 0] % 2
    with strategy.scope():
        backbone = keras_hub.models.BertBackbone(
            vocabulary_size=20,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=16,
            max_sequence_length=LENGTH,
            dropout=0.0,
        )
        classifier = keras_hub.models.BertTextClassifier(
            backbone, num_classes=2, preprocessor=None, dropout=0.0
        )
        classifier.compile(
            optimizer=keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = classifier.fit(
        features, labels, batch_size=GLOBAL_BATCH, epochs=2, verbose=0
    )
    return [*history.history.values(), classifier.predict(features, verbose=0)]
