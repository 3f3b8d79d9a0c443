# Public names, listed once: lazy_loader reads this file and loads each on first use.
import pathlib

from .cli.exit_codes import ExitCode as ExitCode
from .cli.main import command_line as command_line
from .cli.main import main as main
from .errors import HarnessError as HarnessError
from .errors import LaunchError as LaunchError
from .errors import PlanError as PlanError
from .machine.disturbance import CoreClock as CoreClock
from .machine.disturbance import Disturbance as Disturbance
from .machine.disturbance import read_core_clock as read_core_clock
from .machine.machine_state import CpuTopology as CpuTopology
from .machine.machine_state import LogicalCpu as LogicalCpu
from .machine.machine_state import read_machine_state as read_machine_state
from .machine.machine_state import read_topology as read_topology

SOURCE_ROOT: pathlib.Path
