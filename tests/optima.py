"""The best plan of a problem, where tests ask for nothing else."""

from __future__ import annotations

import numpy as np

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.planners.base import Deadline
from automap_models.planners.staged.search import anytime_search


def exact_search(problem: StagedProblem, upper_s: float = np.inf) -> StagedPlan | None:
    """The optimum, or None when no plan that fits is shorter than the bound."""
    return anytime_search(problem, Deadline(), upper_s).plan
