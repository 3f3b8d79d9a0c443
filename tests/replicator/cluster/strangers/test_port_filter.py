"""A cluster whose ports cannot be closed does not start, and says why."""

import pytest

from replicator import errors
from replicator.cluster import port_filter
from replicator.cluster.configuration import ClusterConfig
from replicator.cluster.local_cluster import free_ports
from replicator.cluster.port_filter import Reach


def own_config(**options):
    (port,) = free_ports(1)
    return ClusterConfig(
        addresses={"worker": (f"localhost:{port}",)}, kind="worker", index=0, **options
    )


def test_a_system_without_filters_is_reported(monkeypatch):
    """Nothing listens then; the message says how to do without."""
    monkeypatch.setattr(port_filter.sys, "platform", "darwin")
    port_filter.try_filters.cache_clear()

    with pytest.raises(
        errors.ClusterError,
        match=r"listens on all interfaces, .* the filter that restricts it to this "
        r"machine does not work on this system \(darwin has none\); if a firewall "
        r"blocks untrusted hosts, declare it: `--i-trust-this-network`",
    ):
        port_filter.check(own_config())
    assert Reach.ANY is port_filter.check(own_config(i_trust_this_network=True))


def test_filters_that_do_nothing_are_found_out(monkeypatch):
    """The system is tried, not believed."""
    port_filter.try_filters.cache_clear()
    monkeypatch.setattr(port_filter, "attach", lambda *_: None)

    with pytest.raises(
        errors.ClusterError, match=r"\(a filter that drops all did not\)"
    ):
        port_filter.check(own_config())


def test_libraries_of_another_make_are_reported(monkeypatch):
    """Where TensorFlow's calls cannot be prepared, it does not listen."""
    import tensorflow as tf  # noqa: F401 (its libraries are looked for)

    monkeypatch.setattr(port_filter, "_LIBRARIES", "libother")

    with (
        pytest.raises(errors.ClusterError, match=r"\(no loaded libother\*.so calls"),
        port_filter.guarded(own_config()),
    ):
        pytest.fail("continued")


def test_a_server_that_does_not_come_is_reported():
    """A filter that was put on nothing protects nothing."""
    import tensorflow as tf  # noqa: F401 (its libraries are looked for)

    config = own_config()
    with (
        pytest.raises(
            errors.ClusterError, match=r"\(TensorFlow listened at \[\], not at \d+\)"
        ),
        port_filter.guarded(config),
    ):
        pass
