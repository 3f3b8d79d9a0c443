# Listed once: lazy_loader reads this file and loads each on first use.
from .addressed import KubernetesEnvironment as KubernetesEnvironment
from .addressed import RayEnvironment as RayEnvironment
from .addressed import RayMember as RayMember
from .addressed import ResolverEnvironment as ResolverEnvironment
from .addressed import TfConfigEnvironment as TfConfigEnvironment
from .environments import ClusterEnvironment as ClusterEnvironment
from .environments import DetectedEnvironment as DetectedEnvironment
from .environments import HydraEnvironment as HydraEnvironment
from .environments import OpenMpiEnvironment as OpenMpiEnvironment
from .environments import PlainRankEnvironment as PlainRankEnvironment
from .environments import SlurmEnvironment as SlurmEnvironment
from .environments import config_of as config_of
from .environments import detect as detect
from .environments import forget as forget
