# Listed once: lazy_loader reads this file and loads each on first use.
from .addressed import KubernetesEnvironment as KubernetesEnvironment
from .addressed import RayEnvironment as RayEnvironment
from .addressed import RayMember as RayMember
from .addressed import ResolverEnvironment as ResolverEnvironment
from .addressed import TfConfigEnvironment as TfConfigEnvironment
from .base import ClusterEnvironment as ClusterEnvironment
from .base import DetectedEnvironment as DetectedEnvironment
from .base import config_of as config_of
from .base import detect as detect
from .base import forget as forget
from .ranks import HydraEnvironment as HydraEnvironment
from .ranks import OpenMpiEnvironment as OpenMpiEnvironment
from .ranks import PlainRankEnvironment as PlainRankEnvironment
from .slurm import SlurmEnvironment as SlurmEnvironment
