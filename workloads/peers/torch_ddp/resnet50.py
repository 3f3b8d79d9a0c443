"""The training step of ResNet-50, as ``workloads/resnet50`` defines it, in PyTorch.

torchrun --nproc-per-node 2 -m workloads.peers.torch_ddp.resnet50
"""

from __future__ import annotations

import torch
from torch import nn

from workloads.peers import inputs
from workloads.peers.torch_ddp.process import Process

_NUM_BLOCKS = (3, 4, 6, 3)
_WIDTHS = (64, 128, 256, 512)
_EXPANSION = 4
_MOMENTUM, _EPSILON = 0.1, 1e-5
"""Of batch normalization: the weight of the batch, which TensorFlow calls 1 - 0.9."""


class ConvNorm(nn.Module):
    def __init__(
        self, num_inputs: int, num_outputs: int, size: int, stride: int
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            num_inputs, num_outputs, size, stride, (size - 1) // 2, bias=False
        )
        self.norm = nn.BatchNorm2d(num_outputs, eps=_EPSILON, momentum=_MOMENTUM)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(images))

    def load(self, process: Process, path: str) -> None:
        self.conv.weight.data = process.weight(f"{path}.kernel")
        self.norm.weight.data = process.weight(f"{path}.norm.gamma")
        self.norm.bias.data = process.weight(f"{path}.norm.beta")


class Bottleneck(nn.Module):
    """Residual block: 1x1, 3x3, 1x1 convolutions beside a shortcut."""

    def __init__(self, num_inputs: int, width: int, stride: int, version: str) -> None:
        super().__init__()
        first, second = (stride, 1) if version == "v1" else (1, stride)
        num_outputs = _EXPANSION * width
        self.convs = nn.ModuleList(
            [
                ConvNorm(num_inputs, width, 1, first),
                ConvNorm(width, width, 3, second),
                ConvNorm(width, num_outputs, 1, 1),
            ]
        )
        self.projection = None
        if num_inputs != num_outputs:
            self.projection = ConvNorm(num_inputs, num_outputs, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        shortcut = images if self.projection is None else self.projection(images)
        outputs = torch.relu(self.convs[0](images))
        outputs = torch.relu(self.convs[1](outputs))
        return torch.relu(self.convs[2](outputs) + shortcut)


class ResNet50(nn.Module):
    """The 50-layer residual network of He et al. 2015."""

    def __init__(self, num_classes: int, version: str) -> None:
        super().__init__()
        self.stem = ConvNorm(3, _WIDTHS[0], 7, 2)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        blocks, num_channels = [], _WIDTHS[0]
        for group, (width, count) in enumerate(zip(_WIDTHS, _NUM_BLOCKS, strict=True)):
            for index in range(count):
                stride = 2 if group and not index else 1
                blocks.append(Bottleneck(num_channels, width, stride, version))
                num_channels = _EXPANSION * width
        self.blocks = nn.ModuleList(blocks)
        self.classifier = nn.Linear(num_channels, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.pool(torch.relu(self.stem(images)))
        for block in self.blocks:
            features = block(features)
        return self.classifier(features.mean(dim=(2, 3)))

    def load(self, process: Process) -> None:
        self.stem.load(process, "model.stem")
        for index, block in enumerate(self.blocks):
            path = f"model.blocks.{index}"
            for number, conv in enumerate(block.convs):
                conv.load(process, f"{path}.convs.{number}")
            if block.projection is not None:
                block.projection.load(process, f"{path}.projection")
        self.classifier.weight.data = process.weight("model.classifier.kernel")
        self.classifier.bias.data = process.weight("model.classifier.bias")


def make_optimizer(model: nn.Module, process: Process) -> torch.optim.SGD:
    """Returns heavy-ball momentum, with weight decay of kernels only."""
    config = process.export.settings["config"]
    kernels = [value for value in model.parameters() if value.ndim > 1]
    others = [value for value in model.parameters() if value.ndim <= 1]
    return torch.optim.SGD(
        [
            {"params": kernels, "weight_decay": config["weight_decay"]},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=inputs.goyal_rate(process.export, 0),
        momentum=config["momentum"],
    )


def main() -> None:
    process = Process()
    config = process.export.settings["config"]
    network = ResNet50(config["num_classes"], config["version"])
    network.load(process)
    model = process.replicated(network)
    optimizer = make_optimizer(model, process)
    loss_of = nn.CrossEntropyLoss()
    batches = process.batches()
    for step in process.run.steps():
        images, labels = next(batches)
        with process.precision():
            logits = model(images)
        loss = loss_of(logits.float(), labels)
        rate = inputs.goyal_rate(process.export, step.index)
        process.update(optimizer, loss, rate)
        step.done(loss=float(loss.detach()), examples=len(labels) * process.num_ranks)
    process.end()


if __name__ == "__main__":
    main()
