"""One process of a peer in PyTorch: its cores, its group, and its run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scaling_client  # of the harness, which puts its folder into the path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workloads.peers import catalog, inputs
from workloads.peers.catalog import EXPORT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULTS: dict[str, Any] = {
    "channels_last": True,
    "compile": False,
    "bucket_mb": 25.0,
    "bucket_view": True,
    "static_graph": True,
    "own_cores": True,
    "fused": False,
}
"""How it is tuned; ``README.md`` of the peers has what each brings."""


class Process:
    """A replica: what it begins with, how it is tuned, and its run.

    Attributes:
      export: What it begins with.
      tuning: As ``DEFAULTS``.
      run: That of the client.
      is_alone: Whether replicas do not communicate: one, or a control.
    """

    def __init__(self) -> None:
        self.tuning = inputs.tuning(sys.argv[1:], DEFAULTS)
        self.rank, self.num_ranks = scaling_client.find_rank()
        self._choose_cores()
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

    def _choose_cores(self) -> None:
        """Takes an equal share of the cores, and as many threads."""
        share = catalog.share_of(
            self.rank, self.num_ranks, is_taken=self.tuning["own_cores"]
        )
        torch.set_num_threads(share)

    def replicated(self, model: torch.nn.Module) -> torch.nn.Module:
        """Returns a model whose gradients are averaged over the replicas."""
        if self.tuning["channels_last"]:
            model = model.to(memory_format=torch.channels_last)
        if not self.is_alone:
            model = DistributedDataParallel(
                model,
                # Batch normalization is local, as in our workloads.
                broadcast_buffers=False,
                bucket_cap_mb=self.tuning["bucket_mb"],
                gradient_as_bucket_view=self.tuning["bucket_view"],
                static_graph=self.tuning["static_graph"],
            )
        return self.compiled(model)

    def compiled(self, model: torch.nn.Module) -> torch.nn.Module:
        """Returns a model as it is called: compiled, if that is how it is tuned."""
        return torch.compile(model) if self.tuning["compile"] else model

    def precision(self) -> torch.autocast:
        """Returns a context in which layers compute in the type that ours do."""
        is_mixed = self.export.settings["config"]["compute_dtype"] == "mixed_bfloat16"
        return torch.autocast("cpu", torch.bfloat16, enabled=is_mixed)

    def batches(self) -> Any:
        """Yields images, as PyTorch has them, and labels."""
        layout = (
            torch.channels_last
            if self.tuning["channels_last"]
            else torch.contiguous_format
        )
        for images, labels in self._share.batches():
            made = torch.from_numpy(images).permute(0, 3, 1, 2)
            yield made.contiguous(memory_format=layout), torch.from_numpy(labels).long()

    def draws(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yields what each step of SN-GAN draws, by name."""
        for found in self._share.draws():
            made = {name: torch.from_numpy(value) for name, value in found.items()}
            yield {**made, "pixels": made["pixels"].permute(0, 3, 1, 2)}

    def has_weight(self, name: str) -> bool:
        """Whether there is such a variable of ours."""
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

    def adam(
        self, model: torch.nn.Module, config: dict[str, Any], *, eps: float
    ) -> torch.optim.Adam:
        """Returns Adam for a model; ``update`` gives its rate."""
        return torch.optim.Adam(
            model.parameters(),
            betas=(config["beta_1"], config["beta_2"]),
            eps=eps,
            fused=self.tuning["fused"],
        )

    def update(
        self, optimizer: torch.optim.Optimizer, loss: torch.Tensor, rate: float
    ) -> None:
        """Applies the gradients of a loss at a learning rate."""
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
        """Leaves the group."""
        if self.num_ranks > 1:
            dist.destroy_process_group()
