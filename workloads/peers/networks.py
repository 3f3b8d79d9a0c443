"""Our networks (``workloads/resnet50``, ``workloads/sngan``) over a framework's layers.

Weights have paths, as in ``inputs.Export``: attributes that lead there, and a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUM_BLOCKS = (3, 4, 6, 3)
_NUM_DOWNSAMPLED = 2
"""Blocks of the discriminator that halve the image, of layout ``cifar``."""
FIRST_SIZE = 4
"""Height and width of the generator's first feature map."""
WEIGHT_OF_BATCH = 0.1
"""In moving statistics; TensorFlow's momentum is 1 minus it."""
RESNET50_EPSILON, SNGAN_EPSILON = 1e-5, 2e-5
"""Of batch normalization."""


class Networks:
    """Networks that are made of the layers that a framework defines."""

    pixels: ClassVar[tuple[int, int]]  # The axes of height and width.
    weights: Mapping[str, Any]  # What is trained.
    kept: Mapping[str, Any]  # Moving statistics, and vectors ``u`` of spectral norms.
    # Layers of values, their path, and what a comment names.
    conv_norm: Any  # Without bias, then batch normalization; by a stride.
    conv: Any  # Convolution with SAME padding and bias.
    dense: Any  # With a bias if there is one.
    embedding: Any  # A vector per class: the rows of its matrix.
    norm: Any  # Batch normalization with scale and offset.
    conditional_norm: Any  # The same with those of labels (Dumoulin et al. 2017).
    divided: Any  # A kernel over its spectral norm; keeps the next ``u``.
    # Functions of images.
    relu: Any
    tanh: Any
    first_map: Any  # Of vectors: images of ``FIRST_SIZE``.
    pool: Any  # The largest of 3 x 3 pixels, at every second one.
    doubled: Any  # Every pixel twice, in both directions.
    halved: Any  # Averages of 2 x 2 pixels.

    def resnet50(self, images: Any, version: str) -> Any:
        """Returns logits of images."""
        features = self.pool(self.relu(self.conv_norm(images, "model.stem", 2)))
        first_of_group = [sum(_NUM_BLOCKS[:group]) for group in range(1, 4)]
        for index in range(sum(_NUM_BLOCKS)):
            path = f"model.blocks.{index}"
            stride = 2 if index in first_of_group else 1
            strides = (stride, 1) if version == "v1" else (1, stride)
            shortcut = features
            if f"{path}.projection.kernel" in self.weights:
                shortcut = self.conv_norm(features, f"{path}.projection", stride)
            for number in (0, 1):
                inner = self.conv_norm(
                    features, f"{path}.convs.{number}", strides[number]
                )
                features = self.relu(inner)
            outputs = self.conv_norm(features, f"{path}.convs.2")
            features = self.relu(outputs + shortcut)
        return self.dense(features.mean(self.pixels), "model.classifier")

    def generator(self, latents: Any, labels: Any) -> Any:
        """Returns what the generator of SN-GAN makes, in [-1, 1]."""
        hidden = self.first_map(self.dense(latents, "generator.dense"))
        for path in self._blocks("generator"):
            inner = self.relu(self.conditional_norm(hidden, f"{path}.norm_1", labels))
            inner = self.conv(self.doubled(inner), f"{path}.conv_1")
            inner = self.relu(self.conditional_norm(inner, f"{path}.norm_2", labels))
            shortcut = self.doubled(self.conv(hidden, f"{path}.shortcut"))
            hidden = self.conv(inner, f"{path}.conv_2") + shortcut
        hidden = self.relu(self.norm(hidden, "generator.last_norm"))
        return self.tanh(self.conv(hidden, "generator.last_conv"))

    def discriminator(self, images: Any, labels: Any) -> Any:
        """Returns logits of images, by projection on the class."""
        hidden = images
        paths = ["discriminator.first_block", *self._blocks("discriminator")]
        for index, path in enumerate(paths):
            inner = self.relu(hidden) if index else hidden
            inner = self.conv(inner, f"{path}.conv_1")
            inner = self.conv(self.relu(inner), f"{path}.conv_2")
            if index < _NUM_DOWNSAMPLED:
                inner, hidden = self.halved(inner), self.halved(hidden)
            if f"{path}.shortcut.kernel" in self.weights:
                hidden = self.conv(hidden, f"{path}.shortcut")
            hidden = inner + hidden
        features = self.relu(hidden).sum(self.pixels)
        of_class = self.embedding(labels, "discriminator.embedding")
        logits = self.dense(features, "discriminator.dense")
        return logits[:, 0] + (features * of_class).sum(1)

    def _blocks(self, network: str) -> list[str]:
        paths: list[str] = []
        while f"{network}.blocks.{len(paths)}.conv_1.kernel" in self.weights:
            paths.append(f"{network}.blocks.{len(paths)}")
        return paths

    def kernel(self, path: str) -> Any:
        """Returns the kernel of a layer, over its spectral norm if it has one."""
        kernel = self.weights[f"{path}.kernel"]
        return self.divided(kernel, path) if f"{path}.u" in self.kept else kernel
