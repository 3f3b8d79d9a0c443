"""The training step of SN-GAN, as ``workloads/sngan`` defines it, in PyTorch.

torchrun --nproc-per-node 2 -m workloads.peers.torch_ddp.sngan
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from workloads.peers import inputs
from workloads.peers.torch_ddp.process import Process

_MOMENTUM, _EPSILON = 0.1, 2e-5
"""Of batch normalization: the weight of the batch, which TensorFlow calls 1 - 0.9."""
_FIRST_SIZE = 4
_NUM_DOWNSAMPLED = 2
"""Blocks of the discriminator that halve the image, of layout ``cifar``."""


class Spectral(nn.Module):
    """A kernel over its spectral norm; PyTorch's own is half a step ahead."""

    def __init__(self, kernel: torch.Tensor, process: Process, path: str) -> None:
        super().__init__()
        self.kernel = nn.Parameter(kernel)
        self.register_buffer("u", process.weight(f"{path}.u"))
        self.bias = process.parameter(f"{path}.bias")

    def divided(self) -> torch.Tensor:
        """Returns the kernel over its norm; updates ``u``."""
        kernel = self.kernel
        rows = kernel.movedim(1, -1) if kernel.ndim > 2 else kernel  # noqa: PLR2004
        matrix = rows.reshape(kernel.shape[0], -1)  # a view where channels are last
        with torch.no_grad():
            v = functional.normalize(matrix.T @ self.u, dim=0)
            u = functional.normalize(matrix @ v, dim=0)
            self.u.copy_(u)
        return kernel / torch.dot(u, matrix @ v)


class SpectralConv(Spectral):
    def __init__(self, process: Process, path: str) -> None:
        super().__init__(process.weight(f"{path}.kernel"), process, path)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pad = (self.kernel.shape[-1] - 1) // 2
        return functional.conv2d(images, self.divided(), self.bias, padding=pad)


class DiscriminatorBlock(nn.Module):
    """Residual block with spectral norms; the first one begins with a convolution."""

    def __init__(
        self, process: Process, path: str, *, is_first: bool, is_downsampled: bool
    ) -> None:
        super().__init__()
        self._is_first, self._is_downsampled = is_first, is_downsampled
        self.conv_1 = SpectralConv(process, f"{path}.conv_1")
        self.conv_2 = SpectralConv(process, f"{path}.conv_2")
        self.shortcut = None
        if process.has_weight(f"{path}.shortcut.kernel"):
            self.shortcut = SpectralConv(process, f"{path}.shortcut")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = images if self._is_first else torch.relu(images)
        hidden = self.conv_2(torch.relu(self.conv_1(hidden)))
        if self._is_downsampled:
            hidden = functional.avg_pool2d(hidden, 2)
            images = functional.avg_pool2d(images, 2)
        return hidden + (images if self.shortcut is None else self.shortcut(images))


class Discriminator(nn.Module):
    """Distinguishes images by projection on the class (Miyato & Koyama 2018)."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        others = inputs.block_paths(process.export.part("weights"), "discriminator")
        paths = ["discriminator.first_block", *others]
        self.blocks = nn.Sequential(
            *(
                DiscriminatorBlock(
                    process,
                    path,
                    is_first=not index,
                    is_downsampled=index < _NUM_DOWNSAMPLED,
                )
                for index, path in enumerate(paths)
            )
        )
        path = "discriminator.dense"
        self.dense = Spectral(process.weight(f"{path}.kernel"), process, path)
        path = "discriminator.embedding"  # its rows are classes
        self.embedding = Spectral(process.weight(f"{path}.kernel").T, process, path)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.blocks(images)).sum(dim=(2, 3))
        of_class = functional.embedding(labels, self.embedding.divided())
        logits = functional.linear(features, self.dense.divided(), self.dense.bias)
        return logits[:, 0] + (features * of_class).sum(dim=1)


class ConditionalNorm(nn.Module):
    """Batch normalization with scale and offset of the class (Dumoulin et al. 2017)."""

    def __init__(self, process: Process, path: str) -> None:
        super().__init__()
        gamma = process.weight(f"{path}.gamma")
        self.gamma = nn.Parameter(gamma)
        self.beta = process.parameter(f"{path}.beta")
        self.norm = nn.BatchNorm2d(
            gamma.shape[1], eps=_EPSILON, momentum=_MOMENTUM, affine=False
        )

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        gamma = functional.embedding(labels, self.gamma)[:, :, None, None]
        beta = functional.embedding(labels, self.beta)[:, :, None, None]
        return self.norm(images) * gamma + beta


class GeneratorBlock(nn.Module):
    def __init__(self, process: Process, path: str) -> None:
        super().__init__()
        self.norm_1 = ConditionalNorm(process, f"{path}.norm_1")
        self.norm_2 = ConditionalNorm(process, f"{path}.norm_2")
        self.conv_1 = process.conv(f"{path}.conv_1")
        self.conv_2 = process.conv(f"{path}.conv_2")
        self.shortcut = process.conv(f"{path}.shortcut")

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm_1(images, labels))
        hidden = self.conv_1(functional.interpolate(hidden, scale_factor=2))
        hidden = torch.relu(self.norm_2(hidden, labels))
        shortcut = functional.interpolate(self.shortcut(images), scale_factor=2)
        return self.conv_2(hidden) + shortcut


class Generator(nn.Module):
    def __init__(self, process: Process) -> None:
        super().__init__()
        self.kernel = process.parameter("generator.dense.kernel")
        self.bias = process.parameter("generator.dense.bias")
        paths = inputs.block_paths(process.export.part("weights"), "generator")
        self.blocks = nn.ModuleList(GeneratorBlock(process, path) for path in paths)
        gamma = process.weight("generator.last_norm.gamma")
        self.norm = nn.BatchNorm2d(len(gamma), eps=_EPSILON, momentum=_MOMENTUM)
        self.norm.weight.data = gamma
        self.norm.bias.data = process.weight("generator.last_norm.beta")
        self.conv = process.conv("generator.last_conv")

    def forward(self, latents: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        flat = functional.linear(latents, self.kernel, self.bias)
        hidden = flat.reshape(len(latents), _FIRST_SIZE, _FIRST_SIZE, -1)
        hidden = hidden.permute(0, 3, 1, 2)
        for block in self.blocks:
            hidden = block(hidden, labels)
        return torch.tanh(self.conv(torch.relu(self.norm(hidden))))


def main() -> None:
    process = Process()
    config, draws = process.export.config, process.draws()
    generator, discriminator = Generator(process), Discriminator(process)
    generated, judged = process.replicated(generator), process.replicated(discriminator)
    # What is not trained in an update is called as it is: no gradients to be summed.
    of_generator, of_discriminator = map(process.adam, (generator, discriminator))
    averaged = [*generator.parameters()] if config["ema_decay"] else []
    averages = [value.detach().clone() for value in averaged]
    every, batches = config["num_discriminator_steps"], process.batches()
    for step in process.run.steps():
        (images, labels), drawn = next(batches), next(draws)
        decay = process.export.linear_decay(step.index)
        if step.index % every == 0:
            latents, classes = drawn["generator_latents"], drawn["generator_labels"]
            discriminator.requires_grad_(False)
            loss = -discriminator(generated(latents, classes), classes).mean()
            discriminator.requires_grad_(True)
            process.update(
                of_generator, loss, config["generator_learning_rate"] * decay
            )
            with torch.no_grad():
                for average, value in zip(averages, averaged, strict=True):
                    average.lerp_(value, 1 - config["ema_decay"])
        latents = drawn["discriminator_latents"]
        classes = drawn["discriminator_labels"]
        real = images + drawn["pixels"]
        with torch.no_grad():
            fake = generator(latents, classes)
        logits = judged(torch.cat([real, fake]), torch.cat([labels, classes]))
        loss = torch.relu(1 - logits[: len(labels)]).mean()
        loss = loss + torch.relu(1 + logits[len(labels) :]).mean()
        rate = config["discriminator_learning_rate"] * decay
        process.update(of_discriminator, loss, rate)
        step.done(loss=float(loss.detach()), examples=len(labels) * process.num_ranks)
    process.end()


if __name__ == "__main__":
    main()
