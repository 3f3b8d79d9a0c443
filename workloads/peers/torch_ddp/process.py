"""One process of a peer in PyTorch: its cores, its group, and its run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scaling_client  # of the harness, which puts its folder into the path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workloads.peers import EXPORT_VARIABLE, inputs


class Process:
    """A replica: what it begins with, its share of the cores, and its run."""

    def __init__(self) -> None:
        self.rank, self.num_ranks = scaling_client.find_rank()
        # An equal share of the cores, and as many threads.
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // self.num_ranks)
        first = self.rank * share % len(cores)
        os.sched_setaffinity(0, cores[first : first + share])
        torch.set_num_threads(share)
        self.export = inputs.Export.read(Path(os.environ[EXPORT_VARIABLE]))
        self.run = scaling_client.connect(
            unit="images", num_parameters=self.export.num_parameters
        )
        self._share = inputs.Share(
            *(self.export, self.rank, self.num_ranks, self.run.seed),
            is_repeated=self.run.controls.synthetic,
        )
        if self.num_ranks > 1:
            dist.init_process_group("gloo")
        self.is_alone = self.run.controls.nosync or self.num_ranks == 1

    def replicated(self, model: torch.nn.Module) -> torch.nn.Module:
        """Returns a model whose gradients are averaged over the replicas."""
        model = model.to(memory_format=torch.channels_last)
        if self.is_alone:
            return model
        return DistributedDataParallel(
            model,
            # Batch normalization is local, as in our workloads.
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            static_graph=True,
        )

    def precision(self) -> torch.autocast:
        """Returns a context in which layers compute in the type that ours do."""
        is_mixed = self.export.config["compute_dtype"] == "mixed_bfloat16"
        return torch.autocast("cpu", torch.bfloat16, enabled=is_mixed)

    def batches(self) -> Any:
        for images, labels in self._share.batches():
            made = torch.from_numpy(images).permute(0, 3, 1, 2)  # channels last
            yield made, torch.from_numpy(labels).long()

    def draws(self) -> Iterator[dict[str, torch.Tensor]]:
        for draws in self._share.draws():
            made = {name: torch.from_numpy(value) for name, value in draws.items()}
            yield {**made, "pixels": made["pixels"].permute(0, 3, 1, 2)}

    def has_weight(self, name: str) -> bool:
        return f"weights/{name}" in self.export.arrays

    def parameter(self, name: str) -> torch.nn.Parameter | None:
        """Returns a variable of ours to be trained; None if there is none."""
        return torch.nn.Parameter(self.weight(name)) if self.has_weight(name) else None

    def conv(self, name: str) -> torch.nn.Conv2d:
        """Returns a convolution with SAME padding, with our weights."""
        kernel = self.weight(f"{name}.kernel")
        size = kernel.shape[-1]
        made = torch.nn.Conv2d(kernel.shape[1], len(kernel), size, padding=size // 2)
        made.weight.data, made.bias.data = kernel, self.weight(f"{name}.bias")
        return made

    def adam(self, model: torch.nn.Module) -> torch.optim.Adam:
        """Returns Adam with our settings, and the epsilon of Keras."""
        betas = self.export.config["beta_1"], self.export.config["beta_2"]
        return torch.optim.Adam(model.parameters(), betas=betas, eps=1e-7)

    def update(
        self, optimizer: torch.optim.Optimizer, loss: torch.Tensor, rate: float
    ) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def weight(self, name: str) -> torch.Tensor:
        """Returns a variable of ours in the layout of PyTorch."""
        value = torch.from_numpy(self.export.arrays[f"weights/{name}"])
        if value.ndim == 4:  # noqa: PLR2004 - height, width, inputs, outputs
            value = value.permute(3, 2, 0, 1)
        elif name.endswith("kernel"):
            value = value.T
        return value.contiguous().clone()

    def end(self) -> None:
        if self.num_ranks > 1:
            dist.destroy_process_group()
