"""TensorFlow's convention: the variable ``TF_CONFIG``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from replicator.cluster.environment.base import (
    DetectedEnvironment,
    as_index,
    as_tuples,
)
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

EXAMPLE = (
    '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


class TfConfigEnvironment(DetectedEnvironment):
    """TensorFlow's convention: the variable ``TF_CONFIG``, in JSON.

    It holds the addresses of all processes by kind (``chief``, ``worker``, ``ps``,
    ``evaluator``), and the kind and index of this one. A TFJob of Kubeflow lists no
    evaluators, which nobody connects to.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Parses the variable.

        Raises:
          ClusterConfigError: It is missing, not JSON, or lacks a part.
        """
        self._config = _parse_tf_config(environ.get("TF_CONFIG", ""))

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether ``TF_CONFIG`` is set."""
        return bool(environ.get("TF_CONFIG"))

    @classmethod
    def variables(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        """``TF_CONFIG``."""
        return tuple({"TF_CONFIG"} & environ.keys())

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """``TF_CONFIG["cluster"]``."""
        return as_tuples(self._config["cluster"])

    def own(self) -> tuple[str, int]:
        """``TF_CONFIG["task"]``."""
        own = self._config["task"]
        for key in ("type", "index"):
            if key not in own:
                raise ClusterConfigError(
                    f"TF_CONFIG['task'] has no {key!r}: {own!r}; it says which process "
                    "this one is, for example {'type': 'worker', 'index': 0}"
                )
        return own["type"], as_index(own["index"])


def _parse_tf_config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ClusterConfigError(
            f"TF_CONFIG is not JSON ({error}): {text!r}; write it like '{EXAMPLE}'"
        ) from error
    if not isinstance(config, dict):
        raise ClusterConfigError(
            f"TF_CONFIG must be a JSON object, but is {text!r}; write it like "
            f"'{EXAMPLE}'"
        )
    if "cluster" not in config and "sparseCluster" in config:
        raise ClusterConfigError(
            f"TF_CONFIG has 'sparseCluster', but workers that update together need the"
            " addresses of all, which are in 'cluster'; write"
            f" enableDynamicWorker: false in the TFJob, which then has that: {text!r}"
        )
    for part in ("cluster", "task"):
        if not isinstance(config.get(part), dict) or not config[part]:
            raise ClusterConfigError(
                f"TF_CONFIG has no {part!r} object: {text!r}; write it like '{EXAMPLE}'"
            )
    return config
