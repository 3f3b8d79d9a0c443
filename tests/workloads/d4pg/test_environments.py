"""Environments of the control suite as actors see them."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.d4pg import control as control_lib
from workloads.d4pg.control import BrokenEpisodeError, Environment, FrameStack

ROOT = pathlib.Path(__file__).resolve().parents[3]


def python(code, **variables):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )


def test_every_task_of_the_suite_is_known_and_no_other():
    """The list stands in for dm_control, which takes seconds to import."""
    suite = control_lib.load_suite()

    assert [f"{domain}:{name}" for domain, name in suite.ALL_TASKS] == list(
        control_lib.TASKS
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cartpole", r"^data 'cartpole' must be a domain and a task .*cartpole:"),
        ("cartpole-swingup", r"with a colon .* did you mean 'cartpole:swingup'"),
        (
            "cartpole:swing",
            (
                r"^data 'cartpole:swing' is unknown: 'cartpole' has the tasks "
                r"'cartpole:balance', .*; did you mean 'cartpole:swingup'"
            ),
        ),
        (
            "cartpoole:balance",
            (
                r"is unknown: the domains of the control suite are 'acrobot', .*"
                r"; did you mean 'cartpole:balance'"
            ),
        ),
        ("x:y", r"are 'acrobot', .*'walker'$"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, message):
    with pytest.raises(ValueError, match=message) as raised:
        Environment(name)

    assert "\n" not in str(raised.value)


def test_a_kind_of_observations_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"observations='depth' must be one of 'st"):
        Environment("cartpole:swingup", observations="depth")


def test_an_action_is_taken_at_least_once():
    """Zero repeats would never end an episode."""
    with pytest.raises(ValueError, match="action_repeat=0 must be at least 1"):
        Environment("cartpole:swingup", action_repeat=0)


def test_a_state_is_what_dm_control_observes():
    """Flat, in its order, as float32; the same seed gives the same episode."""
    reference = control_lib.load_suite().load(
        "reacher", "hard", task_kwargs={"random": 3}
    )
    environment = Environment("reacher:hard", seed=3)
    expected, observation = reference.reset(), environment.reset()
    for action in np.random.default_rng(0).uniform(-1, 1, (5, 2)):
        np.testing.assert_array_equal(
            np.concatenate(list(expected.observation.values())).astype(np.float32),
            observation,
        )
        expected = reference.step(action)
        step = environment.step(action)
        observation = step.observation

        assert (expected.reward, 1.0, False) == step[1:]

    assert (6,) == environment.spec.observation_shape
    assert 2 == environment.spec.action_size


def test_an_episode_has_a_thousand_control_steps():
    """At its end only time has run out, so the discount stays 1."""
    environment = Environment("cartpole:balance", action_repeat=3)
    environment.reset()
    steps = []
    while not steps or not steps[-1].is_last:
        steps.append(environment.step(np.zeros(1)))

    # 333 times three control steps, and the last one.
    assert 334 == len(steps)
    assert 1.0 == steps[-1].discount
    assert steps[-1].reward <= 1 < steps[0].reward <= 3
    with pytest.raises(RuntimeError, match=r"no episode is running: call reset\(\)"):
        environment.step(np.zeros(1))


def test_an_endless_task_is_cut():
    """The suite gives lqr no time limit, and its actions no bounds."""
    environment = Environment("lqr:lqr_2_1", action_repeat=250)
    environment.reset()
    ends = [environment.step(np.full(1, 0.5)).is_last for _ in range(4)]

    assert [False, False, False, True] == ends


def test_canonical_actions_cover_the_range_of_the_actuators():
    """-1 and 1 are the bounds, and what has none is left as it is."""
    environment = Environment("cartpole:swingup")
    environment._is_canonical = False
    environment._low, environment._half_range = np.array([-4.0]), np.array([3.0])
    seen = []
    real = environment._env.step
    environment._env.step = lambda action: seen.append(float(action[0])) or real(action)
    environment.reset()
    for action in (-1.0, 0.0, 1.0):
        environment.step(np.array([action]))

    assert [-4.0, -1.0, 2.0] == seen


@pytest.mark.parametrize("broken", ["reward", "state", "physics"])
def test_what_is_not_finite_breaks_the_episode(broken, monkeypatch):
    """The next reset starts a sound one."""
    environment = Environment("cartpole:swingup")
    environment.reset()
    with monkeypatch.context() as patch:
        control = environment._env
        if broken == "reward":
            patch.setattr(control.task, "get_reward", lambda _: float("nan"))
        elif broken == "state":
            patch.setattr(
                control.task, "get_observation", lambda _: {"a": np.array([np.inf])}
            )
        else:
            control.physics.data.qvel[:] = 1e30
        with pytest.raises(BrokenEpisodeError):
            environment.step(np.zeros(1))

    assert np.isfinite(environment.reset()).all()
    assert not environment.step(np.zeros(1)).is_last


@pytest.mark.processes
def test_frames_show_the_episode():
    """84 x 84 RGB that changes with the state; films are larger."""
    done = python(
        "from workloads.d4pg.control import Environment\n"
        "import numpy as np\n"
        "e = Environment('cartpole:swingup', observations='pixels', seed=1)\n"
        "first = e.reset().copy()\n"
        "for _ in range(20): step = e.step(np.ones(1))\n"
        "assert first.shape == e.spec.observation_shape == (84, 84, 3)\n"
        "assert str(first.dtype) == e.spec.observation_dtype == 'uint8'\n"
        "assert first.std() > 5\n"
        "assert np.abs(step.observation.astype(int) - first).max() > 50\n"
        "e.close()\n"
        "e = Environment('walker:walk', can_render=True)\n"
        "assert e.reset().shape == (24,)\n"
        "film = e.render(60, 80)\n"
        "assert film.shape == (60, 80, 3) and film.std() > 5\n"
        "print('sound')"
    )

    assert (0, "sound\n") == (done.returncode, done.stdout), done.stderr


@pytest.mark.processes
def test_an_environment_that_was_made_without_rendering_has_no_frames():
    """What dm_control renders with is decided once in a process."""
    done = python(
        "from workloads.d4pg.control import Environment\n"
        "try: Environment('cartpole:swingup').render()\n"
        "except ValueError as error: print(error)"
    )

    assert "does not work here (dm_control was first used without can_" in done.stdout


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 255)), max_size=12))
def test_a_stack_holds_the_last_frames(frames):
    """The oldest first; the first of an episode stands in for those before it."""
    stack, last = FrameStack(3), []
    for is_first, value in [(True, 7), *frames]:
        frame = np.full((84, 84, 3), value, np.uint8)
        last = [value] * 3 if is_first else [*last[1:], value]
        seen = stack.add(frame, is_first=is_first)

        assert [v for v in last for _ in range(3)] == seen[40, 40].tolist()
    assert (84, 84, 9) == seen.shape


@pytest.mark.processes
def test_without_opengl_states_work_and_pixels_say_what_to_install():
    """A real process whose EGL finds no driver."""
    done = python(
        "from workloads.d4pg.control import Environment\n"
        "import numpy as np, os\n"
        "e = Environment('cartpole:swingup', can_render=True)\n"
        "e.reset(); e.step(np.zeros(1))\n"
        "print('state works', os.environ.get('MUJOCO_GL'))\n"
        "for make in (lambda: Environment('cartpole:swingup', observations='pixels'),\n"
        "             e.render):\n"
        "    try: make()\n"
        "    except ValueError as error: print(error)\n",
        __EGL_VENDOR_LIBRARY_FILENAMES="/nonexistent",
        MUJOCO_GL="",
    )
    state, *errors = done.stdout.splitlines()
    expected = (
        "option observations='pixels' needs OpenGL, which does not work here "
        "(MUJOCO_GL=egl: ImportError: Cannot initialize a headless EGL display.): "
        "install it (Debian: apt-get install libegl1 libgl1-mesa-dri), or use "
        "observations='state'"
    )

    assert "state works" == state.strip(), done.stderr
    assert [expected, expected] == errors


@pytest.mark.processes
def test_opengl_that_is_turned_off_is_reported():
    """And the names of tasks need no dm_control at all."""
    done = python(
        "import sys, workloads.d4pg.control\n"
        "from workloads.d4pg import control as e\n"
        "print('dm_control' in sys.modules)\n"
        "try: e.Environment('walker:walk', observations='pixels')\n"
        "except ValueError as error: print(error)\n"
        "print('tensorflow' in sys.modules)",
        MUJOCO_GL="off",
    )
    before, error, tensorflow = done.stdout.splitlines()

    assert ("False", "False") == (before, tensorflow)
    assert "does not work here (MUJOCO_GL turns it off)" in error


@pytest.mark.processes
@pytest.mark.parametrize(
    "renderer", ["egl", pytest.param("osmesa", marks=pytest.mark.full)]
)
def test_a_renderer_that_is_asked_for_and_missing_is_said(renderer):
    """MuJoCo reads the variable too; states need no renderer at all."""
    done = python(
        "import ctypes.util\n"
        "ctypes.util.find_library = lambda name: None\n"
        "import ctypes\n"
        "class Missing(ctypes.CDLL):\n"
        "    def __init__(self, name, *args, **kwargs):\n"
        "        if any(part in str(name) for part in ('EGL', 'GL', 'OSMesa')):\n"
        "            raise OSError(f'{name} is not there')\n"
        "        super().__init__(name, *args, **kwargs)\n"
        "ctypes.CDLL = ctypes.cdll._dlltype = Missing\n"
        "from workloads.d4pg.control import Environment\n"
        "try: Environment('cartpole:swingup', observations='pixels')\n"
        "except ValueError as error: print(error)\n"
        "print(Environment('cartpole:swingup').reset().shape)\n",
        MUJOCO_GL=renderer,
    )
    error, state = done.stdout.splitlines()

    assert f"(MUJOCO_GL={renderer}: AttributeError: " in error
    assert error.startswith("option observations='pixels' needs OpenGL, which does not")
    assert error.endswith("libegl1 libgl1-mesa-dri), or use observations='state'")
    assert "(5,)" == state
