"""Which programs there are, what they are in the shape of, and what becomes of them."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

import replicator

if TYPE_CHECKING:
    from collections.abc import Callable

FIT, LOOP = "fit", "tf.distribute"
# A few steps of Adam on sums over a batch in another order, in float32.
RTOL, ATOL = 1e-4, 2e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """One program."""

    name: str  # Of its function.
    module: str  # In this folder.
    kind: str  # Whether it ends in ``fit`` or was written for ``tf.distribute``.
    like: str  # What it is in the shape of.
    # What the error says that it raises on several replicas, whose scope verifies; None
    # if all that it returns is that of one device.
    refusal: str | None = None

    @property
    def function(self) -> Callable[[Any], list[Any]]:
        """Takes a strategy; returns numbers."""
        module = importlib.import_module(f"published.{self.module}")
        found: Callable[[Any], list[Any]] = getattr(module, self.name)
        return found


_SUM = "a sum over the batch"
_COMPARED = "examples are compared or joined"
# Keras builds a compiled loss from labels before the first step, under any strategy.
_NO_LABELS = "None values not supported"
_ROWS: dict[tuple[str, str], dict[str, tuple[str, str | None]]] = {
    ("images", FIT): {
        "convolutional_network": ("TensorFlow: convolutional neural network", None),
        "image_classification": ("TensorFlow: image classification", None),
        "image_segmentation": ("TensorFlow: image segmentation", None),
        "transfer_learning": ("TensorFlow: transfer learning and fine-tuning", None),
        "autoencoder": ("TensorFlow: intro to autoencoders", None),
        "denoising": ("Keras: convolutional autoencoder for denoising", None),
        "anomaly_detection": ("TensorFlow: anomaly detection", None),
        "super_resolution": ("Keras: super-resolution by sub-pixels", None),
        "siamese_network": ("Keras: siamese network, contrastive loss", None),
        "vision_transformer": ("Keras: vision transformer", None),
    },
    ("sequences", FIT): {
        "text_classification": ("TensorFlow: basic text classification", None),
        "recurrent_text_classification": ("TensorFlow: text with an RNN", None),
        "text_generation": ("TensorFlow: text generation with an RNN", None),
        "word_vectors": ("TensorFlow: word2vec", None),
        "transformer_classifier": ("Keras: text with a Transformer", None),
        "sequence_to_sequence": ("Keras: sequence to sequence, LSTM", None),
        "time_series": ("TensorFlow: time series forecasting", None),
        "speech_commands": ("TensorFlow: simple audio recognition", None),
    },
    ("tables", FIT): {
        "regression": ("TensorFlow: basic regression", None),
        "overfitting": ("TensorFlow: overfit and underfit", None),
        "imbalanced_data": ("TensorFlow: imbalanced data", None),
        "structured_data": ("TensorFlow: preprocessing layers", None),
        "wide_and_deep": ("Keras: wide, deep and cross networks", None),
        "several_outputs": ("Keras: functional API, several outputs", None),
        "collaborative_filtering": ("Keras: collaborative filtering", None),
    },
    ("adversarial", FIT): {
        "gan_with_own_step": ("Keras: GAN with an own train_step", None),
        "conditional_gan": ("Keras: conditional GAN", None),
        "wasserstein_gan": ("Keras: WGAN-GP", None),
        "cycle_gan": ("Keras: CycleGAN", None),
        "image_translation": ("TensorFlow: pix2pix", None),
    },
    ("own_steps", FIT): {
        "customized_fit": ("Keras: customizing fit", None),
        "variational_autoencoder": ("Keras: variational autoencoder", None),
        "vector_quantized_autoencoder": ("Keras: VQ-VAE", None),
        "knowledge_distillation": ("Keras: knowledge distillation", None),
        "adversarial_training": ("TensorFlow: adversarial regularization", None),
    },
    ("restorations", FIT): {
        "masked_language_model": ("Keras: masked language modelling", _SUM),
        "masked_autoencoder": ("Keras: masked autoencoder", _NO_LABELS),
        "diffusion": ("Keras: denoising diffusion", _NO_LABELS),
    },
    ("contrasts", FIT): {
        "triplet_loss": ("Keras: siamese network, triplet loss", _SUM),
        "metric_learning": ("Keras: metric learning", _COMPARED),
        "self_supervised": ("Keras: SimSiam", None),
        "nearest_neighbour_contrast": ("Keras: NNCLR", _COMPARED),
        "translation_with_padding": ("TensorFlow: Transformer", None),
        "tagging_with_a_mask": ("Keras: named entities, masked", None),
    },
    ("loops", LOOP): {
        "custom_training": ("TensorFlow: custom training with a strategy", None),
        "dcgan": ("TensorFlow: DCGAN", None),
        "convolutional_vae": ("TensorFlow: convolutional VAE", None),
        "translation_with_attention": ("TensorFlow: translation, attention", None),
        "basic_loop": ("TensorFlow: basic training loops", None),
        "graph_attention": ("Keras: graph attention", None),
        "mixed_datasets": ("TensorFlow: distributed input", None),
    },
    ("agents", LOOP): {
        "actor_critic": ("TensorFlow: actor-critic", None),
        "deep_q_learning": ("Keras: deep Q-learning", None),
    },
    ("image_gradients", LOOP): {
        "neural_style": ("TensorFlow: neural style transfer", None),
        "deep_dream": ("TensorFlow: DeepDream", None),
        "integrated_gradients": ("TensorFlow: integrated gradients", None),
        "fast_gradient_sign": ("TensorFlow: adversarial example, FGSM", None),
    },
}
PROGRAMS = {
    name: Program(name=name, module=module, kind=kind, like=like, refusal=refusal)
    for (module, kind), rows in _ROWS.items()
    for name, (like, refusal) in rows.items()
}


def run(name: str, strategy: Any) -> list[Any]:
    """What a program returns with a strategy, from the same initial weights."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    values = PROGRAMS[name].function(strategy)
    return [np.asarray(value).tolist() for value in values]


def run_on(name: str, repl: replicator.Replicator) -> Any:
    """What a program returns on replicas; the text of its error if it is refused.

    Those that end in ``fit`` are verified on their first batch.
    """
    repl.scope(verify=PROGRAMS[name].kind == FIT)
    try:
        return run(name, repl.as_strategy())
    except (replicator.ReplicatorError, ValueError) as error:
        if PROGRAMS[name].refusal is None:
            raise
        return str(error)


def check(name: str, expected: list[Any], found: Any) -> None:
    """Asserts that a program is equal, or was refused as it says."""
    refusal = PROGRAMS[name].refusal
    if refusal is not None:
        assert isinstance(found, str), f"{name} was not refused"
        assert refusal in found
        return
    assert len(expected) == len(found)
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        np.testing.assert_allclose(
            other, one, rtol=RTOL, atol=ATOL, err_msg=f"{name}: value {number}"
        )


CASES = {name: functools.partial(run_on, name) for name in PROGRAMS}
"""As those of a cluster; see ``case_cluster``."""


def set_up(_folder: str, backend: str) -> tuple[Any, ...]:
    """The replicator of all cases."""
    return (replicator.create(backend, num_replicas=2),)
