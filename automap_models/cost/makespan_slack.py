"""What a simulated step waited for: how much later each operation could run, and which transfers held it up.

t    a task: an operation or a transfer      late(t)   latest end that leaves the makespan as it is

                 min over what t's end lets begin: readers of its output on its device, the transfers of its
late(t) =        output, and the next task on its device or channel, of late(next) - time(next);
                 the makespan where there is none

slack(v) = late(v) - finish(v)               orders on devices and channels are those of the simulation (PERT)
wait(v)  = how long the last of its inputs from elsewhere came after the last one from its own device
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from automap_models.core.placement import FloatArray, IntArray
from automap_models.cost.makespan import StepTimeline
from automap_models.cost.step_tables import StepTables


@dataclass(frozen=True, eq=False)
class StepSlack:
    """What the operations of a step waited for.

    Attributes:
        slack_s: [n] see the module.
        wait_s: [n] see the module; 0 where no input came from elsewhere.
        held_up: [e] whether an edge's transfer was the last input to come and made its reader wait.
    """

    slack_s: FloatArray
    wait_s: FloatArray
    held_up: FloatArray


def step_slack(tables: StepTables, assignment: IntArray, timeline: StepTimeline) -> StepSlack:
    """What the operations of a simulated step waited for.

    Args:
        tables: of a problem with n operations and e edges.
        assignment: [n] device of each operation.
        timeline: of that placement.
    """
    from automap_models.cost.makespan_kernel import slacks

    n = assignment.size
    position = np.empty(n, dtype=np.int64)
    position[tables.order] = np.arange(n)
    first = np.searchsorted(timeline.producer, np.arange(n + 1))  # producers ascend
    start = np.concatenate([timeline.start_s, timeline.sent_s])
    finish = np.concatenate([timeline.finish_s, timeline.received_s])
    place = np.concatenate([2 * position, 2 * position[timeline.producer] + 1])
    begun = np.lexsort((place, start))
    return StepSlack(*slacks(tables, assignment, begun, start, finish, first, timeline.producer, timeline.target))
