"""The training step of SN-GAN, as ``workloads/sngan`` defines it, in PyTorch.

torchrun --nproc-per-node 2 -m workloads.peers.torch_ddp.sngan
"""

from __future__ import annotations

import torch

from workloads.peers import inputs, networks
from workloads.peers.torch_ddp import Network, Process


class Generator(Network):
    def forward(self, latents: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.generator(latents, labels)


class Discriminator(Network):
    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.discriminator(images, labels)


def main() -> None:
    process = Process()
    config, draws = process.export.config, process.draws()
    epsilon = networks.SNGAN_EPSILON
    generator = Generator(process, "generator", epsilon)
    discriminator = Discriminator(process, "discriminator", epsilon)
    generated, judged = process.replicated(generator), process.replicated(discriminator)
    # What is not trained in an update is called as it is: no gradients to be summed.
    of_generator, of_discriminator = map(process.adam, (generator, discriminator))
    averaged = [*generator.parameters()] if config["ema_decay"] else []
    averages = [value.detach().clone() for value in averaged]
    every, batches = config["num_discriminator_steps"], process.batches()
    for step in process.run.steps():
        (images, labels), drawn = next(batches), next(draws)
        decay = inputs.linear_decay(config, step.index, config["num_steps"])
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
