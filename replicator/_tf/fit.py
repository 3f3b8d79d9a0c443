"""Private names of TensorFlow and Keras for the step of ``fit`` (test_fit)."""

from __future__ import annotations

import sys
from typing import Any

import keras
from keras.src.losses import loss
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop
from tensorflow.python.ops import gen_math_ops

# What ends a tape, and what divides: owner and name.
GRADIENT = backprop.GradientTape, "gradient"
DIVISIONS = (gen_math_ops, "real_div"), (gen_math_ops, "div_no_nan")
# What reduces losses of examples, or the number of a loss function, by a mask.
REDUCTION = loss, "reduce_weighted_values"
_TF_KERAS_METRICS = "tf_keras.src.metrics.base_metric"


def means() -> list[Any]:
    """The classes of metrics that take numbers (test_fit_metrics, test_tf_keras)."""
    module = sys.modules.get(_TF_KERAS_METRICS)
    others = [] if module is None else [module.Reduce]
    return [keras.metrics.Mean, keras.metrics.Sum, *others]


def is_recorded() -> bool:
    """Whether a tape records, as one of gradients of gradients does (test_fit)."""
    return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()
