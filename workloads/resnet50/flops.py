"""Arithmetic of ResNet-50: multiply-adds of its convolutions and its classifier.

Norms, activations, pooling and the update are left out, as is usual for model FLOPs
(PaLM, Chowdhery et al. 2022, appendix B): the count must not depend on how they are
computed.
"""

from __future__ import annotations

from workloads.resnet50.model import EXPANSION, NUM_BLOCKS, WIDTHS


def multiply_adds(
    *, image_size: int, num_classes: int, version: str
) -> tuple[int, int]:
    """Returns the multiply-adds of one image forward, and those of the first layer."""
    size = image_size // 2
    stem = 7 * 7 * 3 * WIDTHS[0] * size**2
    total = stem
    size //= 2
    num_inputs = WIDTHS[0]
    for group, (width, count) in enumerate(zip(WIDTHS, NUM_BLOCKS, strict=True)):
        for index in range(count):
            before = size
            if group and not index:
                size //= 2
            num_outputs = EXPANSION * width
            # v1 strides in the first convolution, v1.5 in the second.
            first_size = before if version == "v1.5" else size
            total += num_inputs * width * first_size**2
            total += 9 * width * width * size**2
            total += width * num_outputs * size**2
            if num_inputs != num_outputs:
                total += num_inputs * num_outputs * size**2
            num_inputs = num_outputs
    return total + num_inputs * num_classes, stem


def training_flops(*, image_size: int, num_classes: int, version: str) -> int:
    """Returns the floating-point operations of one image in a training step.

    Two per multiply-add. The backward pass has the gradients of weights and of
    activations, each as large as the forward pass; the gradient of the pixels is not
    needed.
    """
    total, stem = multiply_adds(
        image_size=image_size, num_classes=num_classes, version=version
    )
    return 2 * (3 * total - stem)
