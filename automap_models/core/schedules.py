"""A schedule is data: for every rank of a pipeline, the fixed order of its passes.

A pipeline has S ranks and M micro-batches. A rank is the group of devices that holds one stage, or, with vp virtual
stages, vp of them. A pass is one of four actions on one micro-batch of one virtual stage:

    F   forward
    B   backward, whole: gradients of the inputs and of the weights
    I   the gradients of the inputs alone, which the stage before waits for
    W   the gradients of the weights alone, which nothing waits for before the step ends

Three schedules differ in one number, the warm-up: how many forward passes a stage runs before its first backward pass.
From then on it alternates, and it ends with the backward passes that are left. As many micro-batches as the warm-up
has are in flight on the stage at once, and it keeps their activations. Planners search under these three.

    1f1b        min(M, S - s) on stage s: as many as there are stages from s on
    1f1b-deep   min(M, 2(S - s) - 1): more micro-batches in flight, which hide transfers between stages
    gpipe       M: all forward passes before the first backward pass

One stage alone accumulates gradients: under each of these it runs F and B of one micro-batch after the other.

3 stages, 4 micro-batches, one row a stage (F0 and B0 are the forward and backward passes of micro-batch 0):

    1f1b                          1f1b-deep                     gpipe
    F0 F1 F2 B0 F3 B1 B2 B3       F0 F1 F2 F3 B0 B1 B2 B3       F0 F1 F2 F3 B0 B1 B2 B3
    F0 F1 B0 F2 B1 F3 B2 B3       F0 F1 F2 B0 F3 B1 B2 B3       F0 F1 F2 F3 B0 B1 B2 B3
    F0 B0 F1 B1 F2 B2 F3 B3       F0 B0 F1 B1 F2 B2 F3 B3       F0 F1 F2 F3 B0 B1 B2 B3

The others hold several virtual stages on a rank, or split the backward pass, or both:

    interleaved   1F1B over vp virtual stages a rank, in rounds of micro-batches (Narayanan et al., 2104.04473)
    zb-h1         1F1B whose W passes fill the bubble at the end; no more activations than 1F1B (Qi et al., 2401.10241)
    zb-h2         the warm-up of 1f1b-deep, W passes delayed until no rank ever waits where F, I and W take equally long
    zb-v          two virtual stages a rank in a V: without bubble in the memory of 1F1B (2401.10241, section 6)
    dualpipev     two in a V, forward passes of one beside backward passes of the other (DeepSeek-V3, 2412.19437)

Virtual stages are numbered in the order of the model. Where they lie, with 3 ranks and vp = 2:

    looping   rank 0: 0, 3   rank 1: 1, 4   rank 2: 2, 5        v   rank 0: 0, 5   rank 1: 1, 4   rank 2: 2, 3

A row is an order, not a time: when a pass starts is for the simulation (simulate.engine) to say.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from threading import Lock
from typing import Literal, NamedTuple, ParamSpec, TypeVar

from automap_models.errors import BadInput, is_of_type

FORWARD, BACKWARD, INPUT, WEIGHT = range(4)
"""Kinds of passes where schedules are arrays (core.passes)."""
Placement = Literal["looping", "v"]
P = ParamSpec("P")
T = TypeVar("T")

WARM_UPS: dict[str, Callable[[int, int, int], int]] = {
    "1f1b": lambda stage, stages, micro_batches: min(micro_batches, stages - stage),
    "1f1b-deep": lambda stage, stages, micro_batches: min(micro_batches, 2 * (stages - stage) - 1),
    "gpipe": lambda stage, stages, micro_batches: micro_batches if stages > 1 else 1,
}
"""The schedules that are their warm-up alone, which planners search under, by name: function of (stage, stages,
micro_batches) → the stage's warm-up, which is also the number of micro-batches whose activations it holds at once."""


def rank_of(stage: int, ranks: int, placement: Placement) -> int:
    """The rank of a virtual stage."""
    lap, rank = divmod(stage, ranks)
    return ranks - 1 - rank if placement == "v" and lap % 2 else rank


@lru_cache(maxsize=4096)
def ranks_of_stages(stages: int, ranks: int, placement: Placement) -> tuple[int, ...]:
    """[V] the rank of each virtual stage."""
    return tuple(rank_of(stage, ranks, placement) for stage in range(stages))


class ScheduleFamily(NamedTuple):
    """What a named schedule is made of.

    Attributes:
        placement: how its virtual stages lie on ranks.
        virtual: its number of virtual stages a rank; None is any.
    """

    placement: Placement = "looping"
    virtual: int | None = 1


SCHEDULES: dict[str, ScheduleFamily] = {
    **{name: ScheduleFamily() for name in WARM_UPS},
    "interleaved": ScheduleFamily(virtual=None),
    "zb-h1": ScheduleFamily(virtual=None),
    "zb-h2": ScheduleFamily(),
    "zb-v": ScheduleFamily("v", 2),
    "dualpipev": ScheduleFamily("v", 2),
}
"""All schedules by name; core.passes has their orders."""


def schedule_family(name: str) -> ScheduleFamily:
    """What the schedule of that name is made of.

    Raises:
        BadInput: there is none.
    """
    if name not in SCHEDULES:
        raise BadInput(f"unknown schedule {name!r}", where="`schedule`", do=f"choose from {', '.join(SCHEDULES)}")
    return SCHEDULES[name]


DEFAULT_SCHEDULE = "1f1b"
"""What frameworks run unless they are told otherwise."""
MOST_PASSES = 300_000
"""Forward passes of a schedule that is laid out, which take a kilobyte each; more is a slip of the pen."""
ROUNDS_SHOWN = 3
"""Rounds of S micro-batches that `repeating_micro_batches` keeps, one more where ranks run in rounds; the warm-up of
all schedules is shorter than two."""
DEFAULT_MIN_STAGE = 0.25
"""Of an even share of the computation, or of the parameters' bytes, that a stage holds at least."""
DEFAULT_MIN_GAIN = 0.02
"""How much shorter, relatively, a plan has to be that is harder to run than a simpler one."""


def require_schedule(name: str) -> str:
    """The name itself.

    Raises:
        BadInput: planners search under no such schedule.
    """
    if name not in WARM_UPS:
        what, do = f"unknown schedule {name!r}", f"choose from {', '.join(WARM_UPS)}"
        if name in SCHEDULES:
            what = f"no plan is made for schedule {name!r}"
        raise BadInput(what, where="`schedule`", do=do)
    return name


def require_gain(min_gain: float) -> None:
    """Refuse what is no share.

    Raises:
        BadInput: it is below 0 or above 1, or no number.
    """
    if not isinstance(min_gain, (int, float)):
        raise BadInput(is_of_type(min_gain), where="`min_gain`", do="give a share from 0 to 1, such as 0.005")
    if not 0.0 <= min_gain <= 1.0:
        raise BadInput(f"a gain of {min_gain:g}", where="`min_gain`", do="give a share from 0 to 1, such as 0.005")


def warm_up(name: str | None, stage: int, stages: int, micro_batches: int) -> int:
    """Forward passes of a stage before its first backward pass; without a schedule those of 1F1B.

    Args:
        name: a key of WARM_UPS, or None.
        stage: counted from 0.
        stages: S.
        micro_batches: M.
    """
    return WARM_UPS[name or DEFAULT_SCHEDULE](stage, stages, micro_batches)


def micro_batches_per_round(ranks: int, micro_batches: int) -> int:
    """R: that go through a virtual stage before the rank turns to its next one, as torch has it: S where S divides M.

    Raises:
        BadInput: M micro-batches do not make equal rounds of S or more.
    """
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        what = f"{micro_batches} micro-batches do not make {rounds} equal rounds on {ranks} ranks"
        raise BadInput(what, where="`micro_batches`", do=f"give a multiple of {ranks}, or of {rounds}")
    return micro_batches // rounds


def require_runnable(name: str, ranks: int, micro_batches: int, virtual: int) -> None:
    """Refuse numbers that a schedule does not run; see core.passes.

    Raises:
        BadInput: there is no such schedule, it does not run so many micro-batches or virtual stages, or has more than
            MOST_PASSES that do not repeat themselves.
    """
    rules = schedule_family(name)
    for where, count in (("`ranks`", ranks), ("`micro_batches`", micro_batches), ("`virtual`", virtual)):
        if count < 1:
            raise BadInput(f"{count} is no number of them", where=where, do="give at least 1")
    if rules.virtual not in (None, virtual):
        what = f"schedule {name} with {virtual} virtual stage(s) a rank"
        raise BadInput(what, where="`virtual`", do=f"give {rules.virtual}")
    if rules.virtual is None:
        micro_batches_per_round(ranks, micro_batches)
    if name == "dualpipev" and micro_batches < 2 * ranks:
        what = f"schedule {name} with {micro_batches} micro-batches on {ranks} ranks"
        raise BadInput(what, where="`micro_batches`", do=f"give at least {2 * ranks}, one a virtual stage")
    repeated, _ = repeating_micro_batches(name, ranks, micro_batches)
    if ranks * virtual * repeated > MOST_PASSES:
        require_few_passes(name, ranks * virtual, micro_batches)


def require_few_passes(name: str, stages: int, micro_batches: int) -> None:
    """Refuse what has more than MOST_PASSES.

    Raises:
        BadInput: it has.
    """
    if stages * micro_batches > MOST_PASSES:
        what = f"schedule {name} with {micro_batches} micro-batches through {stages} stages"
        raise BadInput(what, where="`micro_batches`", do=f"give at most {MOST_PASSES // stages}")


def repeating_micro_batches(name: str, ranks: int, micro_batches: int) -> tuple[int, int]:
    """(M', R): M' of the M micro-batches show all of a schedule, whose middle repeats itself every R micro-batches.

        M    warm-up | steady … steady … steady … steady | ending
        M'   warm-up | steady … steady | ending               M - M' is a multiple of R

    With M' a rank already holds as much as with M. They are M where there is no such middle: with GPipe, and in rounds
    of other than S micro-batches.

    Args:
        name: a key of SCHEDULES.
        ranks, micro_batches: S, M; see `require_runnable`.
    """
    in_rounds = SCHEDULES[name].virtual is None
    if name == "gpipe" or (in_rounds and micro_batches % ranks):
        return micro_batches, micro_batches
    a_round = ranks if in_rounds else 1
    skipped = max(0, micro_batches - (ROUNDS_SHOWN + in_rounds) * ranks) // a_round * a_round
    return micro_batches - skipped, a_round


def remembered(
    size_of: Callable[..., int], most: int = 400_000, least: int = 200
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """The results of a function's latest calls, as many as are not too large together.

    Args:
        size_of: forward passes of a result, from the arguments of the call.
        most: of all results.
        least: what a result counts as besides its own.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        results, lock, total = dict[object, tuple[T, int]](), Lock(), 0

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            nonlocal total
            key = (args, *kwargs.items())
            with lock:
                if key in results:
                    results[key] = results.pop(key)  # the latest one stands last
                    return results[key][0]
            result, size = function(*args, **kwargs), least + size_of(*args, **kwargs)
            with lock:
                total += size - results.pop(key, (result, 0))[1]
                results[key] = (result, size)
                while total > most:
                    total -= results.pop(next(iter(results)))[1]
            return result

        return call

    return decorate
