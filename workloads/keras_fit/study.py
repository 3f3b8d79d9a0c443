"""What the harness measures of ``fit``: which model is compiled, who owns the loop.

The planner imports this module, so TensorFlow is imported when something is built.
"""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

from workloads import spec
from workloads.resnet50.study import METRICS
from workloads.spec import limited

COMPUTE_DTYPES = ("float32", "float64", "mixed_bfloat16", "mixed_float16")
AS_WRITTEN = "as_written"  # of a model of the user's: its own policy
LOOPS = ("fit", "run")
"""Who owns the loop: Keras' ``fit``, or ``repl.run`` with a wrapped optimizer."""
# Deep networks of Keras amplify rounding at their initial weights, to percents.
EQUIVALENCE = spec.EquivalenceCheck(
    options={
        **spec.EXACT,
        "compute_dtype": "float64",
        "batch_norm": "cross_replica",
    },
    remark=f"{spec.OF_BATCH_NORM}, in float64, without dropout",
)

_SMALLEST = 32
# Pixels of the smallest images, where a network needs more than others.
_SMALLEST_OF = {"InceptionResNetV2": 75, "InceptionV3": 75, "Xception": 71}
APPLICATIONS = (
    *(f"ConvNeXt{size}" for size in ("Tiny", "Small", "Base", "Large", "XLarge")),
    *(f"DenseNet{depth}" for depth in (121, 169, 201)),
    *(f"EfficientNetB{number}" for number in range(8)),
    *(f"EfficientNetV2B{number}" for number in range(4)),
    *(f"EfficientNetV2{size}" for size in "SML"),
    "InceptionResNetV2",
    "InceptionV3",
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Large",
    "MobileNetV3Small",
    "NASNetLarge",
    "NASNetMobile",
    *(f"ResNet{depth}{v}" for depth in (50, 101, 152) for v in ("", "V2")),
    "VGG16",
    "VGG19",
    "Xception",
)
"""What ``keras.applications`` can build without weights."""


def check_jit_of_fit(jit: str) -> None:
    """Raises unless XLA is to compile nothing."""
    if jit != spec.JIT_OFF:
        raise ValueError(
            f"option jit={jit!r}: compile() of Keras takes a whole step or nothing; "
            f"use jit {spec.JIT_OFF!r}, or jit_compile=True in a model of yours"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class KerasFitConfig(spec.ImageConfig):
    """Settings of the model and of its training."""

    image_size: int = limited(224, spec.OF_IMAGE_SIZE)
    num_classes: int = limited(1000, "outputs, whatever the data set has", low=1)
    compute_dtype: str = limited("float32", spec.OF_DTYPE, choices=COMPUTE_DTYPES)
    model: str = limited(
        "ResNet50",
        "a name of keras.applications, or FILE.py:FUNCTION, a function without"
        " arguments that returns a compiled model of images and labels",
    )
    loop: str = limited(
        "fit",
        "fit, or run: a loop over repl.run with the same model and batch, and the same"
        " optimizer, wrapped",
        choices=LOOPS,
    )
    learning_rate: float = limited(
        0.001, "for a model from keras.applications", low=0.0
    )
    momentum: float = limited(0.9, "the same", low=0.0, below=1.0)
    evaluation_batch_size: int = limited(128, "examples per evaluation step", low=1)

    def __post_init__(self) -> None:
        spec.ImageConfig.__post_init__(self)
        spec.check_choice("input_dtype", self.input_dtype, ("float32",))
        check_jit_of_fit(self.jit)
        if self.function is None:
            spec.check_choice("model", self.model, APPLICATIONS)
            smallest = _SMALLEST_OF.get(self.model, _SMALLEST)
            spec.check_range("image_size", self.image_size, low=smallest)
        else:
            self._check_function(*self.function)

    @property
    def function(self) -> tuple[Path, str] | None:
        """File and name of the function that makes the model; None for a name."""
        path, separator, name = self.model.rpartition(":")
        return (Path(path), name) if separator else None

    def _check_function(self, path: Path, name: str) -> None:
        """Raises unless the file defines the function; nothing of it is run."""
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(
                f"option model={self.model!r}: cannot read {str(path)!r}: {reason}; "
                "write FILE.py:FUNCTION, or a name of keras.applications such as "
                "'ResNet50'"
            ) from error
        functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
        if name not in functions:
            public = ", ".join(f for f in functions if not f.startswith("_"))
            raise ValueError(
                f"option model={self.model!r}: {str(path)!r} defines no function "
                f"{name!r}; it has {public or 'none'}"
            )


_CPU_PRESET = KerasFitConfig(
    shuffle_buffer_size=2048, num_input_threads=1, evaluation_batch_size=64
)


WORKLOAD = spec.WorkloadInfo(
    name="keras_fit",
    version="1",
    example_unit="images",
    description="fit of Keras: ResNet50 of keras.applications, or any model",
    train="workloads.keras_fit.train",
    program="workloads.keras_fit.loop_program:KerasProgram",
    presets=(
        dataclasses.replace(
            spec.SMOKE, config=dataclasses.replace(_CPU_PRESET, image_size=32)
        ),
        dataclasses.replace(
            spec.LAPTOP, config=dataclasses.replace(_CPU_PRESET, image_size=64)
        ),
        dataclasses.replace(
            spec.GPU,
            config=KerasFitConfig(compute_dtype="mixed_bfloat16", num_input_threads=8),
        ),
    ),
    default_preset="laptop",
    builtin_data=("digits", spec.SYNTHETIC),
    metrics=METRICS,
    needs=("fit",),
    no_update_because="Keras updates inside fit",
    equivalence=EQUIVALENCE,
    amplifies_rounding=True,
)
