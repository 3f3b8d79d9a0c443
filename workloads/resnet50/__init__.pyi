# Public names, listed once: lazy_loader reads this file and loads each on first use.
from .model import LARS as LARS
from .model import GoyalSchedule as GoyalSchedule
from .model import PolynomialSchedule as PolynomialSchedule
from .model import ResNet50 as ResNet50
from .model import softmax_cross_entropy as softmax_cross_entropy
from .study import ResNet50Config as ResNet50Config
