"""How a score was computed: only scores of the same protocol share an axis."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from workloads.spec import QualityMetric

if TYPE_CHECKING:
    from workloads.metrics.estimate import Estimate

_SHOWN_DIGITS = 16  # of 64 hexadecimal ones


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MetricProtocol:
    """Everything that changes a score while the generator stays the same."""

    metric: str  # Name of the score, such as ``fid``.
    settings: str  # Other settings of the score, such as the number of splits.
    extractor: str  # Name of the feature extractor.
    extractor_digest: str  # SHA-256 of its weights.
    preparation: str  # How images become its input: size, range, resizing method.
    num_examples: int  # Generated examples.
    reference: str  # Name of the real examples; empty if the score has none.
    reference_digest: str  # SHA-256 of their pixels.
    num_reference_examples: int  # Their number.

    def describe(self) -> str:
        """Describes in one line what has no separate field in a record.

        Records with equal name, count and description have equal protocols (digests are
        truncated to 64 bits).
        """
        text = (
            f"{self.settings}; extractor {self.extractor} "
            f"{self.extractor_digest[:_SHOWN_DIGITS]}; "
            f"{self.preparation}"
        )
        if self.reference:
            text += (
                f"; reference {self.reference}, n = {self.num_reference_examples}, "
                f"{self.reference_digest[:_SHOWN_DIGITS]}"
            )
        return text


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A figure with its protocol."""

    estimate: Estimate
    protocol: MetricProtocol

    def as_quality_metric(self) -> QualityMetric:
        """Returns the figure as a quality metric, with the protocol in one line."""
        figure = self.estimate
        if figure.low is None or figure.high is None:
            raise ValueError(
                f"{figure.name} of {figure.num_examples} examples has "
                f"{figure.method}: a quality metric needs an interval; generate more "
                "examples, or report kid, which has one at any n"
            )
        return QualityMetric(
            name=figure.name,
            value=figure.value,
            unit=figure.unit,
            num_examples=figure.num_examples,
            low=figure.low,
            high=figure.high,
            confidence=figure.confidence,
            method=figure.method,
            protocol=self.protocol.describe(),
        )
