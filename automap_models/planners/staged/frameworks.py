"""Where training frameworks cut a model by default: into stages of whole blocks, on equally many devices each.

    embedding   block 0   block 1   …   block L-1   head         cuts lie at the bars
                        |         |   |           |

- `megatron`: equally many blocks, the embedding with the first and the head with the last.
- `torchtitan`: the same, where the embedding and the head count as a block each (generate_llm_fqn_per_model_part).
- `deepspeed`: the smallest largest sum of parameters of a stage (PipelineModule, partition_method="parameters").
- `cost balanced`: the smallest largest forward and backward time of a stage (PyTorch, pull request 179212).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from automap_models.core.profile import FloatArray, Profile
from automap_models.core.staged import StagedPlan, StagedProblem

PLANNER = "blocks"
"""Who makes these plans."""
_NUMBER = re.compile(r"\d+")


def framework_plans(problem: StagedProblem, blocks: Sequence[int]) -> Iterator[tuple[str, StagedPlan]]:
    """The plans of all frameworks, with their names; none where the devices do not make so many equal stages.

    Args:
        problem: its number of stages, devices and micro-batches count; plans may break its constraints and not fit.
        blocks: `block_ends` of its profile.
    """
    devices, stages, profile = problem.cluster.devices, problem.stages, problem.profile
    if devices % stages or stages < 2:
        return
    device_cuts = tuple(range(devices // stages, devices, devices // stages))
    body = _without_head(profile, blocks)
    splits = [("megatron", equal_blocks(body, stages)), ("torchtitan", equal_blocks(body, stages, ends_count=1))]
    splits += [
        ("deepspeed", balanced(profile.W, blocks, stages)),
        ("cost balanced", balanced(profile.C, blocks, stages)),
    ]
    for name, cuts in splits:
        if cuts is not None:
            yield name, StagedPlan(cuts, device_cuts, problem.micro_batches, PLANNER)


def equal_blocks(ends: Sequence[int], stages: int, ends_count: int = 0) -> tuple[int, ...] | None:
    """[S-1] cuts with equally many blocks to a stage, the first stages one more where that is not possible.

    Args:
        ends: last instruction of each block.
        ends_count: as how many blocks the embedding before them counts, and the head behind them.

    Returns:
        None where a stage would have no block.
    """
    counts, more = np.divmod(len(ends) + 2 * ends_count, stages)
    of_stages = np.full(stages, counts) + (np.arange(stages) < more)
    of_stages[[0, -1]] -= ends_count
    if of_stages.min() < 1:
        return None
    return tuple(ends[count - 1] for count in of_stages.cumsum()[:-1].tolist())


def balanced(weights: FloatArray, ends: Sequence[int], stages: int) -> tuple[int, ...] | None:
    """[S-1] cuts after some of `ends` that make the largest sum of weights of a stage as small as possible.

    least[j] after s rounds is the smallest largest sum of s stages that hold the first j units, one or more each.

    Args:
        weights: [n] of each instruction, or [S, n] where they are others in each stage.
        ends: last instruction of each unit but the model's last, ascending.

    Returns:
        None where there are fewer units than stages.
    """
    units = len(ends) + 1
    if stages > units:
        return None
    least, begins = np.where(np.arange(units + 1) == 0, 0.0, np.inf), []
    sums = np.zeros((*weights.shape[:-1], units + 1))
    np.cumsum(np.add.reduceat(weights, [0, *(end + 1 for end in ends)], axis=-1), axis=-1, out=sums[..., 1:])
    behind = np.tri(units + 1, dtype=bool)
    for total in np.broadcast_to(sums, (stages, units + 1)):
        largest = np.maximum(least[:, None], np.where(behind, np.inf, total - total[:, None]))
        begins.append(largest.argmin(0))
        least = largest.min(0)
    cuts, unit = [], units
    for begin in begins[:0:-1]:
        unit = int(begin[unit])
        cuts.append(int(ends[unit - 1]))
    return tuple(reversed(cuts))


def _without_head(profile: Profile, ends: Sequence[int]) -> tuple[int, ...]:
    """The ends of all blocks: the model's end is one, too, where what comes last looks like what is before it."""
    last = len(profile) - 1
    if not profile.layers or len(ends) < 2:
        return (*ends, last)
    tail, before = (
        {_NUMBER.sub("#", layer) for layer in profile.layers[begin + 1 : stop + 1]}
        for begin, stop in ((ends[-1], last), (ends[-2], ends[-1]))
    )
    return (*ends, last) if before <= tail else tuple(ends)
