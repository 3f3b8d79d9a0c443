# Public names, listed once: lazy_loader reads this file and loads each on first use.
from .gate import Gate as Gate
from .gate import judge_losses as judge_losses
from .gate import judge_revisions as judge_revisions
from .gate import judge_studies as judge_studies
from .gate import read_gate as read_gate
from .gate_metrics import METRICS as METRICS
from .gate_metrics import JudgedCase as JudgedCase
from .gate_metrics import Metric as Metric
from .gate_metrics import Rule as Rule
from .gate_metrics import metric_of as metric_of
from .gate_metrics import metric_of_gate as metric_of_gate
from .paired_gate import Rates as Rates
from .paired_gate import slowdown_logs as slowdown_logs
from .paired_gate import stated_rates as stated_rates
