"""The figures of the report, for a notebook: each takes ``points_frame(study)``.

from reports import plot
from results.figures import frame

plot.scaling(frame.points_frame(study), quantity="speedup")
"""

from __future__ import annotations

from reports.plot.figures import forest, learning, scaling, steps, waterfall

__all__ = ["forest", "learning", "scaling", "steps", "waterfall"]
