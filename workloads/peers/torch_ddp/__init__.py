"""PyTorch: DistributedDataParallel, a process per replica, gloo; and the layers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scaling_client  # of the harness, which puts its folder into the path
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from workloads.peers import EXPORT_VARIABLE, inputs, networks

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np


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

    def replicated(self, model: nn.Module) -> nn.Module:
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

    def adam(self, model: nn.Module) -> torch.optim.Adam:
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

    def end(self) -> None:
        if self.num_ranks > 1:
            dist.destroy_process_group()


class Network(networks.Networks, nn.Module):
    """A network with our weights, which begin with its name, in PyTorch's layouts."""

    pixels = 2, 3
    relu, tanh = staticmethod(torch.relu), staticmethod(torch.tanh)

    def __init__(self, process: Process, name: str, epsilon: float) -> None:
        nn.Module.__init__(self)
        self._epsilon = epsilon
        self.weights: dict[str, nn.Parameter] = {}
        self.kept: dict[str, torch.Tensor] = {}
        for path, value in process.export.part("weights").items():
            if not path.startswith(f"{name}."):
                continue
            if inputs.is_moving(path) or path.endswith(".u"):
                self.kept[path] = torch.from_numpy(value).clone()
            else:
                self.weights[path] = nn.Parameter(_in_layout(path, value))
        self._trained = nn.ParameterList(self.weights.values())

    def conv_norm(
        self, images: torch.Tensor, path: str, stride: int = 1
    ) -> torch.Tensor:
        kernel = self.weights[f"{path}.kernel"]
        pad = (kernel.shape[-1] - 1) // 2
        outputs = functional.conv2d(images, kernel, None, stride, pad)
        return self.norm(outputs, f"{path}.norm")

    def conv(self, images: torch.Tensor, path: str) -> torch.Tensor:
        kernel, bias = self.kernel(path), self.weights[f"{path}.bias"]
        return functional.conv2d(images, kernel, bias, padding=kernel.shape[-1] // 2)

    def dense(self, values: torch.Tensor, path: str) -> torch.Tensor:
        bias = self.weights.get(f"{path}.bias")
        return functional.linear(values, self.kernel(path), bias)

    def embedding(self, labels: torch.Tensor, path: str) -> torch.Tensor:
        rows = self.divided(self.weights[f"{path}.kernel"].T, path)
        return functional.embedding(labels, rows)

    def norm(
        self, images: torch.Tensor, path: str, *, is_affine: bool = True
    ) -> torch.Tensor:
        return functional.batch_norm(
            images,
            self.kept[f"{path}.moving_mean"],
            self.kept[f"{path}.moving_variance"],
            self.weights[f"{path}.gamma"] if is_affine else None,
            self.weights[f"{path}.beta"] if is_affine else None,
            training=True,
            momentum=networks.WEIGHT_OF_BATCH,
            eps=self._epsilon,
        )

    def conditional_norm(
        self, images: torch.Tensor, path: str, labels: torch.Tensor
    ) -> torch.Tensor:
        gamma, beta = (
            functional.embedding(labels, self.weights[f"{path}.{name}"])
            for name in ("gamma", "beta")
        )
        normalized = self.norm(images, f"{path}.norm", is_affine=False)
        return normalized * gamma[:, :, None, None] + beta[:, :, None, None]

    def divided(self, kernel: torch.Tensor, path: str) -> torch.Tensor:
        """Of PyTorch's own, the norm is half a step ahead."""
        rows = kernel.movedim(1, -1) if kernel.ndim > 2 else kernel  # noqa: PLR2004
        matrix = rows.reshape(kernel.shape[0], -1)  # a view where channels are last
        kept = self.kept[f"{path}.u"]
        with torch.no_grad():
            v = functional.normalize(matrix.T @ kept, dim=0)
            u = functional.normalize(matrix @ v, dim=0)
            kept.copy_(u)
        return kernel / torch.dot(u, matrix @ v)

    def first_map(self, flat: torch.Tensor) -> torch.Tensor:
        size = networks.FIRST_SIZE
        return flat.reshape(len(flat), size, size, -1).permute(0, 3, 1, 2)

    def pool(self, images: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(images, 3, 2, padding=1)

    def doubled(self, images: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(images, scale_factor=2)

    def halved(self, images: torch.Tensor) -> torch.Tensor:
        return functional.avg_pool2d(images, 2)


def _in_layout(name: str, value: np.ndarray) -> torch.Tensor:
    made = torch.from_numpy(value)
    if made.ndim == 4:  # noqa: PLR2004 - height, width, inputs, outputs
        made = made.permute(3, 2, 0, 1)
    elif name.endswith("kernel"):
        made = made.T
    return made.contiguous().clone()
