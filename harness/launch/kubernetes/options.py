"""The options of the launcher ``kubernetes``."""

from __future__ import annotations

from harness.launch.options import Nodes
from harness.launch.pods import PodOptions


class KubernetesOptions(PodOptions):
    """What a sweep needs of Kubernetes."""

    nodes: Nodes = None
