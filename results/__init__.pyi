# Public names, listed once: lazy_loader reads this file and loads each on first use.
from .figures.frame import curves_frame as curves_frame
from .figures.frame import points_frame as points_frame
from .figures.frame import steps_frame as steps_frame
from .figures.frame import summary as summary
from .figures.frame import trials_frame as trials_frame
from .statistics.estimates import Estimate as Estimate
from .store.study_store import Store as Store
from .study.cases import Study as Study
from .study.cases import load_study as load_study
