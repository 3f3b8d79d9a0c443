"""Checks the plugins of installed packages: ``pytest --pyargs harness.conformance``.

``-k NAME`` checks one. ``HARNESS_PLUGINS=workloads=bench:WORKLOAD`` adds what has no
entry point. Metrics, sections and formats are tried on a small study, or on that of
``HARNESS_STUDY=FOLDER``; workloads, backends and launchers measure one, for which
TensorFlow is needed.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from harness.conformance import plugin_checks, plugin_output, plugin_trials
from harness.conformance.checks import NonconformingError
from results import plugins

if TYPE_CHECKING:
    from pathlib import Path

    from results.plugins import Plugin
    from results.store.study_store import Store


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes a test for each plugin that is there."""
    if "plugin" not in metafunc.fixturenames:
        return
    try:
        found = plugin_checks.named()
    except (NonconformingError, plugins.PluginError) as error:
        raise pytest.UsageError(str(error)) from None
    kinds = getattr(metafunc.function, "kinds", tuple(plugins.KINDS))
    found = [plugin for plugin in found if plugin.kind in kinds]
    ids = [f"{plugins.KINDS[plugin.kind]} {plugin.name}" for plugin in found]
    metafunc.parametrize("plugin", found, ids=ids)


def of(*kinds: str) -> Any:
    """Returns a decorator of tests for these kinds only."""

    def mark(function: Any) -> Any:
        function.kinds = kinds
        return function

    return mark


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Returns the study on which plugins that show something are tried."""
    return plugin_trials.any_study(tmp_path_factory.mktemp("study"))


def test_there_are_plugins() -> None:
    """Or everything would pass where a package is not installed."""
    if not plugin_checks.named():
        pytest.fail(
            "there is no plugin in this environment; install its package, or name it:"
            f" {plugin_checks.VARIABLE}=workloads=MODULE:NAME",
            pytrace=False,
        )


def test_it_describes_itself(plugin: Plugin) -> None:
    """It is imported without TensorFlow, and its facts are complete."""
    _check(lambda: plugin_checks.describe(plugin, plugin_checks.load(plugin)))


@of("metrics", "sections", "formats")
def test_it_reads_a_study(plugin: Plugin, study: Store) -> None:
    """The same each time, without changing the study."""
    _check(lambda: plugin_output.check(plugin, plugin_checks.load(plugin), study))


@of("workloads", "backends", "launchers")
def test_it_is_measured(plugin: Plugin, tmp_path: Path) -> None:
    """A study of one and two replicas, with its match, and ``verify``."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip(
            "TensorFlow is not installed: pip install 'replicator-harness[tensorflow]'"
        )
    _check(lambda: plugin_trials.measure(plugin, plugin_checks.load(plugin), tmp_path))


def _check(made: Any) -> None:
    wrong = ""
    try:
        made()
    except NonconformingError as error:
        wrong = str(error)  # raised again below, without what led to it
    if wrong:
        pytest.fail(wrong, pytrace=False)
