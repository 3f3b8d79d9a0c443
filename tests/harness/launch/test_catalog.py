"""Launchers are found by name; what cannot be started is refused in one line."""

import pytest

from harness.errors import PlanError
from harness.launch import catalog
from harness.launch.contract import HOSTS_VARIABLE


def test_the_default_is_this_machine():
    """It leaves no trace in the identity of a trial."""
    launcher = catalog.start(catalog.DEFAULT)

    assert "local" == launcher.name
    assert 1 == launcher.num_hosts
    assert {} == launcher.identity()


def test_an_unknown_launcher_gets_the_nearest_name():
    with pytest.raises(
        PlanError, match=r"unknown launcher 'locale'; known are local.*did you mean"
    ):
        catalog.info("locale")


@pytest.mark.parametrize("name", catalog.LAUNCHERS)
def test_every_launcher_is_described(name):
    """The help prints the line; its folder has its name."""
    assert name == catalog.info(name).name
    assert name == type(catalog.info(name)).__module__.split(".")[2]
    assert catalog.info(name).summary


def test_trials_of_several_hosts_do_not_run_on_one(make_spec):
    """Figures of both would be of the same case."""
    spec = make_spec(variables={HOSTS_VARIABLE: "2"})

    with pytest.raises(
        PlanError,
        match=r"--launcher local: the trials are planned for 2 hosts, but 1 .*"
        r"allocation of 2",
    ):
        catalog.start("local").check([spec])
