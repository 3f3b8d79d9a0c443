"""Every backend keeps every promise of the contract, or says why it makes none.

Run as a program, it writes ``docs/conformance.md`` anew.
"""

import functools
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest
from conformance_cases import cases, targets
from conformance_cases.cases import CASES
from conformance_cases.targets import HEIRS, NOT_RUN, TARGETS, covering_targets

import replicator
from replicator.catalog import BACKENDS, CAPABILITIES

# Backends whose every promise a target shows.
OURS = ("in_graph", "multi_worker", "multi_worker_in_graph")
COVERING = covering_targets(list(CASES.values()))
PAIRS = [
    pytest.param(
        target.name,
        case.name,
        marks=[] if target.name in COVERING[case.name] else pytest.mark.full,
    )
    for target in TARGETS.values()
    for case in CASES.values()
    if target.runs(case)
]


@pytest.fixture(scope="session", autouse=True)
def _watchdog(request):
    """A case that hangs ends the run after showing where, past pytest's capture."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        cases.WATCHDOG["file"] = os.dup(2)


@pytest.fixture(scope="session")
def cluster_outcomes(request, tmp_path_factory):
    """What came of a case in a cluster: one cluster per target runs all of them."""
    found = {}

    def outcome(target, case_name):
        if target.name not in found:
            names = [
                item.callspec.params["case_name"]
                for item in request.session.items
                if "cluster_outcomes" in getattr(item, "fixturenames", ())
                and item.callspec.params["target_name"] == target.name
            ]
            folder = tmp_path_factory.mktemp(target.name)
            found[target.name] = targets.run(target, names, folder)
        return found[target.name][case_name]

    return outcome


@functools.cache
def _alone(case_name):
    """What comes of a case on one device, with which others are compared."""
    return cases.evaluate(CASES[case_name], TARGETS["single-1"].make)


def _of_single_device(case):
    """The value that a case has to give, if that is one device's."""
    if not case.like_single_device:
        return None
    outcome = _alone(case.name)
    assert not outcome.error_kinds, outcome.trace
    return outcome.value


@pytest.mark.parametrize(
    ("target_name", "case_name"), PAIRS, ids=lambda name: name.replace("-", "_")
)
def test_a_backend_conforms(target_name, case_name, cluster_outcomes):
    """It gives what NumPy or one device gives, or the error that teaches."""
    target, case = TARGETS[target_name], CASES[case_name]
    if target.is_cluster:
        outcome = cluster_outcomes(target, case_name)
    elif target_name == "single-1":
        outcome = _alone(case_name)
    else:
        outcome = cases.evaluate(case, target.make)

    cases.judge(case, target.topology, outcome, _of_single_device(case))


def why_not_shown(backend, capability):
    """Why no target runs a case that needs a capability, or None where one does."""
    reasons = []
    for target in TARGETS.values():
        for case in CASES.values():
            if target.backend != backend or capability not in case.needs:
                continue
            reason = target.why_not(case)
            if not target.is_meant(case):
                reason = f"its cases need at least {case.min_replicas} replicas"
            if reason is None:
                return None
            reasons.append(reason)
    return reasons[0] if reasons else "its cases are not run here"


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_promise_of_a_backend_is_asked_of_it_without_the_full_run(backend):
    """Except where no target can show it here; the document says why."""
    promised = BACKENDS[backend].capabilities
    hidden = {c for c in promised if why_not_shown(backend, c) is not None}
    asked = [
        case.needs
        for case in CASES.values()
        if any(TARGETS[name].backend == backend for name in COVERING[case.name])
    ]

    assert set(promised) == set().union(*asked) | hidden
    assert not hidden or backend not in OURS


@pytest.mark.parametrize("heir", HEIRS)
def test_an_heir_inherits_from_the_backend_that_runs_its_cases(heir):
    """Or from the same class: what is left out there runs by the same code."""
    bases = [set(BACKENDS[backend].load().__mro__) for backend in (heir, HEIRS[heir])]

    assert set.intersection(*bases) - set(replicator.Replicator.__mro__)


def _lacks():
    """Capabilities that a backend lacks and that one process can look into."""
    targets = {
        target.backend: target
        for target in TARGETS.values()
        if not target.is_cluster and target.num_replicas <= 2
    }
    return [
        (target.name, capability)
        for backend, target in targets.items()
        for capability in BACKENDS[backend].lacks
    ]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(("target_name", "capability"), _lacks())
def test_what_a_backend_lacks_does_not_work(target_name, capability):
    """Otherwise the entry in the catalogue is stale, and the backend better than said.

    Cases that need something else that is lacking say nothing about this capability.
    """
    target = TARGETS[target_name]
    lacks = set(BACKENDS[target.backend].lacks)
    cases = [
        case
        for case in CASES.values()
        if case.needs & lacks == {capability} and target.is_meant(case)
    ]
    assert any(_fails(target, case) for case in cases), (
        f"remove {capability!r} from what it lacks"
    )


def _fails(target, case):
    """Whether a case does not give on a target what it has to."""
    outcome = cases.evaluate(case, target.make)
    try:
        cases.judge(case, target.topology, outcome, _of_single_device(case))
    except AssertionError:
        return True
    return False


PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
_INTRODUCTION = """# Conformance

Generated by `python tests/conformance/test_conformance.py` from the catalogue of
backends and the suite in `tests/conformance/`, whose cases every backend must pass.

Each capability that a backend lacks has a reason. *Not tested*: a backend claims the
capability, but the cases for it need another one that it lacks, more replicas than it
has, or hardware.
"""


def render_document():
    parts = [
        _INTRODUCTION,
        "| capability | all backends, except |",
        "| --- | --- |",
        *(
            f"| **{name}**: {text} | {'<br>'.join(_exceptions(name)) or '-'} |"
            for name, text in CAPABILITIES.items()
        ),
        "",
        *(f"`{name}`, {note}." for name, note in NOT_RUN.items()),
        "",
    ]
    return "\n".join(parts)


def _exceptions(capability):
    """Who lacks a capability, by reason, and who has it with no case that shows it."""
    lacking = {}
    untested = []
    for name, info in BACKENDS.items():
        reason = info.lacks.get(capability)
        if reason is not None:
            lacking.setdefault(reason, []).append(name)
        elif why_not_shown(name, capability) is not None:
            untested.append(name)
    yield from (f"{_listed(names)}: {reason}" for reason, names in lacking.items())
    if untested:
        yield f"*not tested*: {_listed(untested)}"


def _listed(names):
    stock = [name for name in BACKENDS if name.startswith(("tf_", "tpu"))]
    return "`tf_*`, `tpu`" if names == stock else ", ".join(f"`{n}`" for n in names)


def test_the_document_shows_the_present_matrix():
    """``docs/conformance.md`` is generated; the message says how."""
    written = PAGE.read_text(encoding="utf-8")

    assert render_document() == written, (
        "stale: run python tests/conformance/test_conformance.py"
    )


if __name__ == "__main__":
    PAGE.write_text(render_document(), encoding="utf-8")
