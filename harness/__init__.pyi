# Public names, listed once: lazy_loader reads this file and loads each on first use.
import pathlib

from .cli.exit_codes import ExitCode as ExitCode
from .cli.main import command_line as command_line
from .cli.main import main as main
from .errors import HarnessError as HarnessError
from .errors import LaunchError as LaunchError
from .errors import PlanError as PlanError

SOURCE_ROOT: pathlib.Path
