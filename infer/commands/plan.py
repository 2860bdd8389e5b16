"""`automap plan`: every kind of plan for one model on one cluster, ranked, and the best of them (formats.md)."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from automap_models.core.pass_orders import WARM_UPS
from automap_models.core.schedules import SCHEDULES, require_schedule
from automap_models.core.units import BYTES, SECONDS
from automap_models.errors import BadInput
from automap_models.planners.options import ExploreOptions

from ..requests import PlanRequest, StrategyRequest
from ..runner import Command, Output, Report
from .parsing import (
    DEVICE,
    PROFILED_SIZE,
    RESTRICTIONS,
    SEED,
    STATE_FACTOR,
    STEP,
    add_objective,
    add_options,
    add_topo,
    filled,
    kinds_of_models,
    name_argument,
    positive,
    refuse,
    source_of,
)
from .searching import applies, search_strategies
from .strategies import add_strategy, strategy_of, strategy_request
from .targets import TARGET, TARGET_CHOICES, narrow

if TYPE_CHECKING:
    from automap_models.core.cluster import Cluster
    from automap_models.core.estimate import Estimate
    from automap_models.core.profiled_model import ProfiledModel
    from automap_models.formats.atomic import Cache
    from automap_models.planners.portfolio.candidate import Candidate
    from automap_models.planners.portfolio.explore import Exploration
    from automap_models.planners.portfolio.space import PlanningSpace

    from ..reports.exploration import Explored
    from ..reports.strategies import Searched
    from ..reports.text import Steps

FORBIDDABLE = ("data", "operator", "pipeline")  # core.constraints knows them, too; a test holds them together
LIMITS = """
    --pin LAYER=STAGE        a layer's stage, from 0; may be repeated
    --keep-together PATTERN  layers that no cut may part, such as 'decoder/block_3/*'; may be repeated
    --max-stages N           of the deepest pipeline (default 16)
    --memory SIZE            memory of a device that plans may use, such as '16 GB', '14 GiB' or 16e9 (default: all)
    --forbid                 a kind of parallelism that is not to be used; may be repeated
"""
SEARCHING = f"""
    --budget TIME  time for all searches together, without tracing, counted by what is computed (default: 20 s for
        strategies, 10 s for plans of stages)
    --thorough     search all stages and micro-batches to the end, and train an agent on the model, too
    {SEED}
    --no-cache     neither read results of former runs nor keep this one
    --plan FILE    search nothing: cost and show this plan.json
"""
OF_SEARCHING = (
    *("schedule", "min_gain", "min_stage", "equal_replicas", "cut_at", "for"),
    *("global_batch", "state_factor", "pin", "keep_together", "max_stages", "memory", "forbid"),
    *("budget", "thorough", "seed", "out", "plot"),
)
"""Options that a plan made before has no use for."""
SAME_NAMES = (
    *("global_batch", "state_factor", "max_stages", "thorough"),
    *("schedule", "objective", "min_gain", "min_stage", "equal_replicas", "cut_at", "target"),
)
"""Options that the library's functions call the same."""
EPILOG = f"""Two searches:
  strategies         with --global-batch, for a built-in transformer or a config.json on devices that have constants of
                     training steps (step:). It chooses tp, cp, ep, pp, vp, dp, micro-batch, schedule, ZeRO, sequence
                     parallelism, cuts and recomputation of each stage, and leaves fields that are given as they are.
                     With --price nothing is searched.
  plans of stages    in all other cases, and with any of --pin, --keep-together, --max-stages, --forbid,
                     --equal-replicas, --cut-at, --min-gain, --objective length, --thorough, --batch, --dtype and
                     --state-factor, which strategies do not know

{kinds_of_models("bert48, t5_11b, gpt3_7b, …: see automap-profile --list")}
  a profile                  of automap-profile or another tool: no operations, so no plans that partition them

examples:
  automap-plan t5_11b --topo C --global-batch 256                   data, operators, stages, or a hybrid of them?
  automap-plan Llama-3.1-405B/config.json --device h100 --topo p4d-4 --sequence 4096 --global-batch 256
  automap-plan gpt3_7b --device a100 --topo p4d-4 --out plan.json --plot plans.png
  automap-plan my_models:make_step --topo my-cluster.yaml --thorough
  automap-plan examples/bert48_v100.npz --topo B --forbid data --max-stages 4
  automap-plan bert48 --topo A --memory '16 GB' --keep-together 'block_0/*' --pin loss=1
  automap-plan t5_3b --topo B --json | jq .best.step_s
  automap-plan gpt3_7b --device a100 --topo p4d-4 --plan plan.json  cost and show a plan made before
  automap-plan llama3-70b --device h100 --topo dgx-h100-4 --global-batch 128 --tp 8 --reserve '4 GB'
                                                                    the best strategy of tensor parallelism 8
  automap-plan gpt3_7b --device a100 --topo p4d-4 --global-batch 256 --tp 4 --pp 4 --recompute full --price
                                                                    what a step of this strategy takes

Results are kept in $AUTOMAP_CACHE, else $XDG_CACHE_HOME/automap, else ~/.cache/automap.

exit codes: 0 done, 2 the input or the arguments are bad, 3 no plan fits the memory, 1 a defect of ours,
141 the output's reader went away
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to train on which cluster, and what the plan must be like."""
    parser.add_argument("what", metavar="MODEL|FILE", type=name_argument, help="what to train, see below")
    add_topo(parser)
    add_options(parser.add_argument_group("which training step"), STEP + DEVICE + PROFILED_SIZE)
    batch = "--global-batch B  samples between two updates (default: 16 micro-batches of the profiled size)"
    add_options(parser.add_argument_group("what to plan"), batch + STATE_FACTOR)
    add_options(
        parser.add_argument_group("what the plan must be like"),
        LIMITS + RESTRICTIONS + TARGET,
        pin={"default": []},
        keep_together={"default": []},
        memory={"type": positive(BYTES)},
        forbid={"choices": FORBIDDABLE, "default": []},
        **{"for": TARGET_CHOICES},
    )
    add_objective(parser.add_argument_group("what to make small"), SCHEDULES)
    add_strategy(parser.add_argument_group("what is fixed of a strategy; the search chooses the rest"))
    add_options(parser.add_argument_group("how long to look"), SEARCHING, budget={"type": positive(SECONDS)})


def request(namespace: argparse.Namespace) -> PlanRequest:
    """What is asked for.

    Raises:
        BadInput: an option means nothing for what is given.
    """
    if namespace.plan is not None:
        refuse(namespace, OF_SEARCHING, "the plan read has its own")
    strategy = strategy_request(namespace)
    narrow(namespace)
    if strategy is None and namespace.schedule is not None:
        require_schedule(namespace.schedule)
    known = namespace.schedule in (None, *WARM_UPS)
    return filled(
        PlanRequest,
        namespace,
        source=source_of(vars(namespace)),
        options=ExploreOptions(
            **{name: getattr(namespace, name) for name in SAME_NAMES if name != "schedule" or known},
            pins=namespace.pin,
            together=namespace.keep_together,
            memory_bytes=namespace.memory,
            forbidden=namespace.forbid,
            budget_s=namespace.budget,
            seed=namespace.seed or 0,
        ),
        cached=not namespace.no_cache,
        strategy=strategy,
    )


def run(request: PlanRequest) -> Explored | Candidate | Estimate | Searched:
    """The best strategy, or its price; or all kinds of plans, ranked; or the one that was given, costed again.

    Raises:
        BadInput: an argument or a file cannot be used, constraints contradict one another, or the plan given belongs
            to another model or cluster.
        Infeasible: no plan fits.
        UserCodeError: the user's own code raised.
    """
    wanted = request.strategy
    if wanted is not None and wanted.price:
        return _priced(request, wanted)
    if wanted is not None and not (wanted.usual and not applies(request)):
        return search_strategies(request, wanted, _cluster(request), _cache(request))
    return _explored(request) if request.plan is None else _read_back(request)


def _priced(request: PlanRequest, wanted: StrategyRequest) -> Estimate:
    """The price of a strategy; what is wrong with it shows before the model is traced."""
    from automap_models.cost.layer_times import Runtime
    from automap_models.formats.hardware_yaml import device_of, read_kinds
    from automap_models.planners.portfolio.work import work_once
    from automap_models.planners.strategies.problem import usual_precision
    from automap_models.simulate.strategy import require_device, strategy_estimate
    from automap_models.workloads.source import transformer

    from ..reports.text import Steps

    cluster = _cluster(request)
    device = device_of(cluster, request.device)
    kinds = read_kinds(cluster)
    precision = usual_precision([*kinds.values()] or [device])
    wanted = replace(wanted, fields={"precision": precision, **wanted.fields})
    assert request.options.global_batch is not None
    strategy = strategy_of(wanted, request.options.global_batch, cluster, transformer(request.source).shape())
    for kind in kinds.values() or (device,):
        require_device(kind, strategy)
    source = replace(request.source, dtype=strategy.dtype)
    with Steps() as steps:
        work = work_once(source, _cache(request), steps.begin)
    return strategy_estimate(work, strategy, cluster, device, Runtime(flash=wanted.flash), kinds)


def _explored(request: PlanRequest) -> Explored:
    """Profile once, search every kind of plan; or take what a former run of the same request came to."""
    from automap_models.formats.atomic import fingerprint
    from automap_models.planners.portfolio.explore import ExplorePlanner
    from automap_models.planners.portfolio.planning import explore_config, space_to_explore
    from automap_models.planners.portfolio.store import exploration_to_json

    from ..reports.exploration import Explored
    from ..reports.text import Steps

    begun = time.perf_counter()
    options, cluster, cache = request.options, _cluster(request), _cache(request)
    _ = options.constraints  # what is wrong with them shows before the model is traced
    with Steps() as steps:
        key, model = _profiled(request, cluster, cache, steps)
        config, space = explore_config(options), space_to_explore(model, cluster, options)
        key = f"plans-{fingerprint({'model': key, **_identity(request, cluster)})}"
        exploration = _remembered(cache.read(key), space)
        cached = exploration is not None
        if exploration is None:
            result = ExplorePlanner(config).solve(space, watch=lambda news: steps.begin(news.what))
            result.required_plan()
            exploration = result.facts["exploration"]
            cache.write(key, exploration_to_json(exploration))
    return Explored(exploration, config, time.perf_counter() - begun, cached)


def _read_back(request: PlanRequest) -> Candidate:
    """The plan in a file, whichever kind it is of, costed again."""
    from automap_models.formats.plan_reader import read_plan
    from automap_models.planners.portfolio.candidate import Candidate

    from ..reports.text import Steps

    assert request.plan is not None
    cluster, cache = _cluster(request), _cache(request)
    with Steps() as steps:
        _, model = _profiled(request, cluster, cache, steps)
    read = read_plan(request.plan, model, cluster)
    return Candidate(read.problem, read.required_plan(), read.cost, read.bound)


def _profiled(request: PlanRequest, cluster: Cluster, cache: Cache, steps: Steps) -> tuple[str, ProfiledModel]:
    """What identifies the model, and the model."""
    from automap_models.formats.hardware_yaml import device_of
    from automap_models.planners.portfolio.model import profiled_once

    device = device_of(cluster, request.device)
    return profiled_once(request.source, device, request.microbatch_size, cluster, cache, steps.begin)


def _cache(request: PlanRequest) -> Cache:
    from automap_models.formats.atomic import Cache, cache_folder

    return Cache(cache_folder() if request.cached else None)


def _cluster(request: PlanRequest) -> Cluster:
    """The cluster, perhaps with less memory."""
    from automap_models.formats.hardware_yaml import read_cluster

    return request.options.limited(read_cluster(request.topo))


def _identity(request: PlanRequest, cluster: Cluster) -> dict[str, object]:
    """Everything but the model that the plans depend on, as plain data."""
    from automap_models.formats.hardware_yaml import cluster_document
    from automap_models.version import __version__

    identity = {"microbatch_size": request.microbatch_size, **asdict(request.options)}
    identity["rates"] = [group.rates for group in cluster.groups]
    return {**identity, "cluster": cluster_document(cluster), "automap": __version__}


def _remembered(entry: bytes | None, space: PlanningSpace) -> Exploration | None:
    """The exploration in the cache; None where there is none of this space."""
    if entry is None:
        return None
    from automap_models.planners.portfolio.store import exploration_from_json

    try:
        return exploration_from_json(entry, space)
    except BadInput:
        return None


def report(request: PlanRequest, outcome: Explored | Candidate | Estimate | Searched) -> Report:
    """The ranking of all plans and the best one, or the one plan or strategy that was searched or given."""
    from automap_models.core.estimate import Estimate
    from automap_models.workloads.source import notes_of

    from ..reports.strategies import Searched

    unpriced = notes_of(request.source)
    if isinstance(outcome, Estimate):
        from automap_models.formats.strategy_json import estimate_document

        from ..reports.estimate import print_estimate

        return Report(partial(print_estimate, outcome), partial(estimate_document, outcome), warnings=unpriced)
    if isinstance(outcome, Searched):
        from ..reports.strategies import draw_searched, print_searched, searched_document

        return Report(
            partial(print_searched, outcome),
            partial(searched_document, outcome),
            draw=partial(draw_searched, outcome),
            warnings=unpriced,
        )
    from automap_models.plots.exploration import draw_candidates

    from ..reports.exploration import (
        Explored,
        candidate_document,
        explored_document,
        print_candidate,
        print_explored,
        write_best,
    )

    if not isinstance(outcome, Explored):
        return Report(partial(print_candidate, outcome), partial(candidate_document, outcome), warnings=unpriced)
    return Report(
        partial(print_explored, outcome),
        partial(explored_document, outcome),
        {"plan": lambda path: write_best(path, outcome)},
        partial(draw_candidates, outcome.exploration),
        warnings=unpriced,
    )


COMMAND = Command(
    summary="compare every kind of plan for a model on a cluster",
    description="Find the best way of training a model on a cluster: data parallelism, operator partitioning, "
    "pipeline stages, or stages that do the others inside, all priced by one model and ranked.",
    epilog=EPILOG,
    add_arguments=add_arguments,
    outputs=(
        Output("plan", ("--out",), "write the best plan as JSON"),
        Output("plot", ("--plot",), "draw what each plan consists of (.png, .svg, .pdf)", picture=True),
    ),
    json="print all plans as JSON and nothing else",
    inputs=("what", "topo", "plan"),
    request=request,
    run=run,
    report=report,
)
