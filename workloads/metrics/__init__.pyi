# Public names, listed once: lazy_loader reads this file and loads each on first use.
from .digits import open_digits as open_digits
from .evaluator import Evaluator as Evaluator
from .evaluator import FeatureExtractor as FeatureExtractor
from .evaluator import open_inception as open_inception
from .evaluator import to_uint8 as to_uint8
from .quality import Moments as Moments
from .quality import counted as counted
from .quality import example_metrics as example_metrics
from .quality import fid as fid
from .quality import inception_score as inception_score
from .quality import kid as kid
from .quality import mean as mean
