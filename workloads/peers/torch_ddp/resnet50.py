"""The training step of ResNet-50, as ``workloads/resnet50`` defines it, in PyTorch.

torchrun --nproc-per-node 2 -m workloads.peers.torch_ddp.resnet50
"""

from __future__ import annotations

import torch
from torch import nn

from workloads.peers import inputs, networks
from workloads.peers.torch_ddp import Network, Process


class ResNet50(Network):
    def forward(self, images: torch.Tensor, version: str) -> torch.Tensor:
        return self.resnet50(images, version)


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
        lr=inputs.goyal_rate(process.export, 0),
        momentum=config["momentum"],
    )


def main() -> None:
    process = Process()
    config = process.export.config
    model = ResNet50(process, "model", networks.RESNET50_EPSILON)
    model = process.replicated(model)
    optimizer = make_optimizer(model, process)
    loss_of = nn.CrossEntropyLoss()
    batches = process.batches()
    for step in process.run.steps():
        images, labels = next(batches)
        with process.precision():
            logits = model(images, config["version"])
        loss = loss_of(logits.float(), labels)
        rate = inputs.goyal_rate(process.export, step.index)
        process.update(optimizer, loss, rate)
        step.done(loss=float(loss.detach()), examples=len(labels) * process.num_ranks)
    process.end()


if __name__ == "__main__":
    main()
