"""Which kernel TensorFlow would use, read from its registry."""

import pytest
import tensorflow as tf

from replicator._tf import kernels

FLOAT = frozenset({tf.float32})
INT = frozenset({tf.int32})


def test_a_kernel_is_found_by_device_and_type():
    found = kernels.find_kernel("MatMul", "CPU", {"T": FLOAT})

    assert found is not None
    assert tf.float32 in found.types["T"]
    assert kernels.find_kernel("MatMul", "CPU", {"T": frozenset({tf.string})}) is None
    assert kernels.find_kernel("NoSuchOp", "CPU", {}) is None


def test_a_kernel_for_all_devices_serves_one_that_has_none():
    """Sums of int32 are left to the host, on GPUs too."""
    found = kernels.find_kernel("AddN", "GPU", {"T": INT})
    if not tf.test.is_built_with_cuda():
        pytest.skip("this build of TensorFlow has no GPU kernels to compare with")

    assert "DEFAULT" == found.device_type
    assert {"inputs", "sum"} == found.host_args
    assert frozenset() == kernels.find_kernel("AddN", "GPU", {"T": FLOAT}).host_args


def test_a_label_asks_for_another_kernel():
    """The optimizer of layouts requests host kernels in this way."""
    if not tf.test.is_built_with_cuda():
        pytest.skip("this build of TensorFlow has no GPU kernels to compare with")
    found = kernels.find_kernel("DataFormatVecPermute", "GPU", {"T": INT}, "host")

    assert {"x", "y"} == found.host_args
    assert kernels.find_kernel("MatMul", "GPU", {"T": FLOAT}, "host") is None


@pytest.mark.parametrize("op", ["ResourceApplyAdam", "ResourceScatterSub"])
def test_the_attribute_of_the_data_type_is_found_whatever_its_name(op):
    """``T`` of one, ``dtype`` of the other."""
    assert kernels.has_kernel(op, "CPU", tf.float32)
    assert not kernels.has_kernel(op, "CPU", tf.string)
