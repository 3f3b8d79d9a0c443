"""Balance: where to cut a chain of layers, so that no stage is much slower."""

from __future__ import annotations

import itertools
import math
import numbers
from typing import TYPE_CHECKING, Any

from replicator.errors import PipelineError
from replicator.validation.arguments import is_integer, shown

if TYPE_CHECKING:
    from collections.abc import Sequence


def balance_stages(costs: Sequence[float], num_stages: int) -> list[range]:
    """Cuts a chain of layers into stages so that the largest costs as little as it can.

    The slowest stage sets the pace of a pipeline (Huang et al. 2019, section 2.1).
    May be called anywhere.

    Args:
      costs: Of each layer, in order: FLOPs, or seconds that were measured.
      num_stages: K, at most as many as layers.

    Returns:
      The indices of the layers of each stage; none is empty.

    Raises:
      PipelineError: There are fewer layers than stages, or a cost is no number of at
        least 0.
    """
    if not isinstance(costs, (list, tuple)) or not costs:
        raise PipelineError(
            f"balance_stages(costs) got {shown(costs)}; pass a list with the FLOPs or "
            "the seconds of each layer"
        )
    if not is_integer(num_stages, least=1) or num_stages > len(costs):
        raise PipelineError(
            f"num_stages={shown(num_stages)} for {len(costs)} layers; use an integer "
            f"from 1 to {len(costs)}: every stage has a layer at least"
        )
    bad = [x for x in costs if not _is_cost(x)]
    if bad:
        raise PipelineError(
            f"costs has {shown(bad[0])}; use FLOPs or seconds, finite and not below 0"
        )
    until = [0.0, *itertools.accumulate(costs)]
    # least[k][n]: the largest stage when the first n layers are cut into k stages.
    least = [[math.inf] * (len(costs) + 1) for _ in range(num_stages + 1)]
    first = [[0] * (len(costs) + 1) for _ in range(num_stages + 1)]
    least[0][0] = 0.0
    for k in range(1, num_stages + 1):
        for end in range(k, len(costs) + 1):
            for start in range(k - 1, end):
                largest = max(least[k - 1][start], until[end] - until[start])
                if largest < least[k][end]:
                    least[k][end], first[k][end] = largest, start
    stages, end = [], len(costs)
    for k in range(num_stages, 0, -1):
        stages.append(range(first[k][end], end))
        end = first[k][end]
    return stages[::-1]


def _is_cost(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and 0 <= value < math.inf
