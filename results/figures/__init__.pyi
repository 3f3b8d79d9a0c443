# Public names, listed once: lazy_loader reads this file and loads each on first use.
from .lost_time import Explained as Explained
from .lost_time import InputBound as InputBound
from .lost_time import LostTime as LostTime
from .lost_time import Part as Part
from .lost_time import decompose as decompose
from .lost_time import judge_input_bound as judge_input_bound
from .lost_time import losses as losses
from .scaling import Comparison as Comparison
from .scaling import Point as Point
from .scaling import compare_backends as compare_backends
from .scaling import points as points
from .scaling import throughput_ratio as throughput_ratio
