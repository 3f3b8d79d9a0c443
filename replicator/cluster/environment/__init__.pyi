# Listed once: lazy_loader reads this file and loads each on first use.
from .base import ClusterEnvironment as ClusterEnvironment
from .base import DetectedEnvironment as DetectedEnvironment
from .detection import config_of as config_of
from .detection import detect as detect
from .detection import forget as forget
from .kubernetes import KubernetesEnvironment as KubernetesEnvironment
from .ranks import HydraEnvironment as HydraEnvironment
from .ranks import OpenMpiEnvironment as OpenMpiEnvironment
from .ranks import PlainRankEnvironment as PlainRankEnvironment
from .ray_gang import RayEnvironment as RayEnvironment
from .ray_gang import RayMember as RayMember
from .resolver import ResolverEnvironment as ResolverEnvironment
from .slurm import SlurmEnvironment as SlurmEnvironment
from .tf_config import TfConfigEnvironment as TfConfigEnvironment
