"""The training step of ResNet-50, as ``workloads/resnet50`` defines it, in PyTorch.

torchrun --nproc-per-node 2 -m workloads.peers.torch_ddp.resnet50
"""

from __future__ import annotations

import torch
from torch import nn

from workloads.peers.torch_ddp.process import Process

_NUM_BLOCKS = (3, 4, 6, 3)
_MOMENTUM, _EPSILON = 0.1, 1e-5
"""Of batch normalization: the weight of the batch, which TensorFlow calls 1 - 0.9."""


class ConvNorm(nn.Module):
    def __init__(self, process: Process, path: str, stride: int) -> None:
        super().__init__()
        kernel = process.weight(f"{path}.kernel")
        num_outputs, num_inputs, size, _ = kernel.shape
        self.conv = nn.Conv2d(
            num_inputs, num_outputs, size, stride, (size - 1) // 2, bias=False
        )
        self.conv.weight.data = kernel
        self.norm = nn.BatchNorm2d(num_outputs, eps=_EPSILON, momentum=_MOMENTUM)
        self.norm.weight.data = process.weight(f"{path}.norm.gamma")
        self.norm.bias.data = process.weight(f"{path}.norm.beta")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(images))


class Bottleneck(nn.Module):
    """Residual block: 1x1, 3x3, 1x1 convolutions beside a shortcut."""

    def __init__(self, process: Process, path: str, stride: int, version: str) -> None:
        super().__init__()
        first, second = (stride, 1) if version == "v1" else (1, stride)
        self.convs = nn.ModuleList(
            ConvNorm(process, f"{path}.convs.{number}", each)
            for number, each in enumerate((first, second, 1))
        )
        self.projection = None
        if process.has_weight(f"{path}.projection.kernel"):
            self.projection = ConvNorm(process, f"{path}.projection", stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        shortcut = images if self.projection is None else self.projection(images)
        outputs = torch.relu(self.convs[0](images))
        outputs = torch.relu(self.convs[1](outputs))
        return torch.relu(self.convs[2](outputs) + shortcut)


class ResNet50(nn.Module):
    """The 50-layer residual network of He et al. 2015."""

    def __init__(self, process: Process, version: str) -> None:
        super().__init__()
        self.stem = ConvNorm(process, "model.stem", 2)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        first_of_group = [sum(_NUM_BLOCKS[:group]) for group in range(1, 4)]
        self.blocks = nn.Sequential(
            *(
                Bottleneck(
                    process,
                    f"model.blocks.{index}",
                    2 if index in first_of_group else 1,
                    version,
                )
                for index in range(sum(_NUM_BLOCKS))
            )
        )
        kernel = process.weight("model.classifier.kernel")
        self.classifier = nn.Linear(kernel.shape[1], len(kernel))
        self.classifier.weight.data = kernel
        self.classifier.bias.data = process.weight("model.classifier.bias")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.blocks(self.pool(torch.relu(self.stem(images))))
        return self.classifier(features.mean(dim=(2, 3)))


def make_optimizer(model: nn.Module, process: Process) -> torch.optim.SGD:
    """Returns heavy-ball momentum, with weight decay of kernels only."""
    config = process.export.config
    kernels = [value for value in model.parameters() if value.ndim > 1]
    others = [value for value in model.parameters() if value.ndim <= 1]
    return torch.optim.SGD(
        [
            {"params": kernels, "weight_decay": config["weight_decay"]},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=process.export.goyal_rate(0),
        momentum=config["momentum"],
    )


def main() -> None:
    process = Process()
    config = process.export.config
    model = process.replicated(ResNet50(process, config["version"]))
    optimizer = make_optimizer(model, process)
    loss_of = nn.CrossEntropyLoss()
    batches = process.batches()
    for step in process.run.steps():
        images, labels = next(batches)
        with process.precision():
            logits = model(images)
        loss = loss_of(logits.float(), labels)
        rate = process.export.goyal_rate(step.index)
        process.update(optimizer, loss, rate)
        step.done(loss=float(loss.detach()), examples=len(labels) * process.num_ranks)
    process.end()


if __name__ == "__main__":
    main()
