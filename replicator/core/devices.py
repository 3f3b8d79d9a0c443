"""The choice of devices for replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import workers as _tf_workers
from replicator.catalog import MAX_REPLICAS
from replicator.core.validation import format_value, is_integer, listed
from replicator.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence


# Types that TensorFlow's collective ops reduce on GPUs by NCCL. They accept bfloat16
# too, and then fail (the list is a constant in the library). int32 is in host memory.
NCCL_DTYPES = frozenset({tf.float16, tf.float32, tf.float64, tf.int64})
# By their ring.
RING_DTYPES = NCCL_DTYPES | {tf.bfloat16}


def resolve(
    num_replicas: int, devices: Sequence[str] | None, *, distinct: bool
) -> list[str]:
    _check_count(num_replicas)
    if devices is not None:
        return _explicit(num_replicas, devices, distinct=distinct)
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        logical = tf.config.list_logical_devices("GPU")
        if len(logical) < num_replicas:
            raise DeviceError(
                f"{num_replicas} replicas need {num_replicas} GPUs, but there are "
                f"{len(logical)}; use fewer replicas, or devices=['CPU:0', ...]"
            )
        return [_full_name(d.name) for d in logical[:num_replicas]]
    if not distinct:
        return [_full_name("/device:CPU:0")] * num_replicas
    return split_cpu(num_replicas)


def resolve_logical(
    num_replicas: int,
    num_logical_devices: int,
    devices: Sequence[str] | Sequence[Sequence[str]] | None,
) -> list[list[str]]:
    """Returns the full names of the devices of each replica, by logical device."""
    count = check_num_logical(num_logical_devices)
    is_list = isinstance(devices, (list, tuple))
    flat: Any = tf.nest.flatten(devices) if is_list else devices
    if count == 1:
        names = resolve(num_replicas, flat, distinct=False)
        return [[name] for name in names]
    try:
        names = resolve(num_replicas * count, flat, distinct=flat is None)
    except DeviceError as error:
        raise DeviceError(
            f"{num_replicas} replicas of {count} logical devices need "
            f"{num_replicas * count} devices: {error}"
        ) from error
    return [names[r * count : (r + 1) * count] for r in range(num_replicas)]


def check_num_logical(count: Any) -> int:
    if not is_integer(count, least=1, most=MAX_REPLICAS):
        raise DeviceError(
            f"logical_devices_per_replica {format_value(count)} must be an integer of "
            f"at least 1 and at most {MAX_REPLICAS}"
        )
    return count


def split_cpu(num_devices: int) -> list[str]:
    """Splits the CPU into virtual devices unless there are enough already."""
    _check_count(num_devices)
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu) or [None]
    if len(configured) < num_devices:
        try:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices
            )
        except RuntimeError as error:
            raise DeviceError(
                f"{num_devices} virtual CPU devices are needed, but TensorFlow has "
                f"already been initialized with {len(configured)}; create the "
                "replicator before the first op, or call "
                "tf.config.set_logical_device_configuration at program start"
            ) from error
    return [_full_name(f"/device:CPU:{i}") for i in range(num_devices)]


def memory(device: str) -> str:
    """The memory of a device; all CPU devices of one process share one."""
    spec = tf.DeviceSpec.from_string(device)
    return str(spec.replace(device_index=0).to_string()) if is_cpu(device) else device


def process(device: str) -> str:
    return device.rpartition("/device:")[0]


def device_type(device: str) -> str:
    return str(tf.DeviceSpec.from_string(device).device_type)


def is_cpu(device: str) -> bool:
    return device_type(device) == "CPU"


def is_gpu(device: str) -> bool:
    return device_type(device) == "GPU"


def first_cpu(device: str) -> str:
    """The first CPU of the process that a device is in."""
    spec = tf.DeviceSpec.from_string(device)
    return str(spec.replace(device_type="CPU", device_index=0).to_string())


def cpu_of(device: str) -> str:
    """The CPU for host work of a device: the first of its process; a CPU itself."""
    return device if is_cpu(device) else first_cpu(device)


def have_virtual_gpus(devices: Sequence[str]) -> bool:
    """Whether two different GPUs of this process are parts of one physical GPU."""
    names = filter(is_gpu, devices)
    logical = {int(tf.DeviceSpec.from_string(name).device_index or 0) for name in names}
    physical = [
        position
        for position, gpu in enumerate(tf.config.get_visible_devices("GPU"))
        for _ in tf.config.get_logical_device_configuration(gpu) or [None]
    ]
    used = [physical[index] for index in logical if index < len(physical)]
    return len(set(used)) < len(used)


def _check_count(num_replicas: Any) -> None:
    if not is_integer(num_replicas, least=1, most=MAX_REPLICAS):
        raise DeviceError(
            f"num_replicas {format_value(num_replicas)} must be an integer from 1 to "
            f"{MAX_REPLICAS}, and so must num_replicas times logical devices"
        )


def _explicit(num_replicas: int, passed: Sequence[str], *, distinct: bool) -> list[str]:
    try:
        devices = [] if isinstance(passed, str) else listed(passed, "devices")
    except TypeError:
        devices = []
    if len(devices) != num_replicas:
        raise DeviceError(
            f"devices {format_value(passed)} must be a list with one device per "
            f"replica, for {num_replicas} replicas; pass names such as ['CPU:0', "
            "'CPU:1']"
        )
    names = [_full_name(device) for device in devices]
    known = {_full_name(d.name) for d in tf.config.list_logical_devices()}
    missing = [d for d, name in zip(devices, names, strict=True) if name not in known]
    if missing:
        raise DeviceError(
            f"device {missing[0]!r} does not exist; this process has "
            f"{', '.join(sorted(name.rpartition('/device:')[2] for name in known))}"
        )
    if distinct and len(set(names)) != num_replicas:
        raise DeviceError(
            f"devices {list(devices)!r} must all be different for this backend"
        )
    return names


def _full_name(device: str) -> str:
    name = device if str(device).startswith("/") else f"/device:{device}"
    try:
        spec = tf.DeviceSpec.from_string(name)
    except (TypeError, ValueError) as error:
        raise DeviceError(
            f"device {format_value(device)} is not a device name; use names such as "
            "'CPU:0' or 'GPU:1'"
        ) from error
    kind, index = _tf_workers.own_address()
    spec = tf.DeviceSpec(job=kind, replica=0, task=index).make_merged_spec(spec)
    return str(spec.to_string())
