"""Layout of convolutions on GPUs.

Keras computes in NHWC. TensorFlow's graph optimizer converts convolutions on GPUs to
NCHW in float32, and keeps NHWC in 16 bits, for which tensor cores from compute
capability 8.0 on are made. A conversion puts a transposition wherever the layouts meet.
"""

from __future__ import annotations

import tensorflow as tf

_OPTIMIZER = "layout_optimizer"


def choose(layout: str) -> None:
    """Sets the layout for the steps that this process traces from now on."""
    options = tf.config.optimizer.get_experimental_options()
    if layout == "nhwc":
        tf.config.optimizer.set_experimental_options({_OPTIMIZER: False})
    elif options.get(_OPTIMIZER) is False:
        # By a program before this one; a sweep's trial has a process of its own.
        tf.config.optimizer.set_experimental_options({_OPTIMIZER: True})
