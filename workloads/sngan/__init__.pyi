# Public names, listed once: lazy_loader reads this file and loads each on first use.
from .model import ConditionalBatchNormalization as ConditionalBatchNormalization
from .model import Discriminator as Discriminator
from .model import Generator as Generator
from .model import LinearDecay as LinearDecay
from .model import SpectralConv2D as SpectralConv2D
from .model import SpectralDense as SpectralDense
from .model import SpectralEmbedding as SpectralEmbedding
from .model import discriminator_loss as discriminator_loss
from .model import generator_loss as generator_loss
from .model import power_step as power_step
from .study import SNGANConfig as SNGANConfig
