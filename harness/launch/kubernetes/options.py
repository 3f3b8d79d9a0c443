"""The options of the launcher ``kubernetes``."""

from __future__ import annotations

from typing import Annotated

from harness.launch.options import Nodes
from harness.launch.pods import ObjectName, PodOptions
from harness.options.option import Option


class KubernetesOptions(PodOptions):
    """What a sweep needs of Kubernetes."""

    nodes: Nodes = None
    namespace: Annotated[
        str | None,
        Option(help="Namespace.", kind=ObjectName, default="that of `kubectl`"),
    ] = None
    service_account: Annotated[
        str | None,
        Option(
            help="Account of the pods; with `--nodes` above 1 it makes JobSets.",
            kind=ObjectName,
            default="the namespace's",
        ),
    ] = None
