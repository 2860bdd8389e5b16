"""`automap plan`: every kind of plan for one model on one cluster, ranked, and the best of them (formats.md)."""

from __future__ import annotations

import argparse
from typing import Any

from automap_models.core.schedules import SCHEDULES
from automap_models.core.units import BYTES, SECONDS
from automap_models.export.targets import PLANNED_FOR
from automap_models.requests import ExploreRequest, StrategyRequest

from ..runner import Command, Output, reported_by
from .parsing import (
    DEVICE,
    PROFILED_SIZE,
    RESTRICTIONS,
    STATE_FACTOR,
    STEP,
    add_objective,
    add_options,
    add_topo,
    kinds_of_models,
    name_argument,
    positive,
    refuse,
    source_of,
)
from .strategies import TARGET, UNLESS, add_strategy, plan_options

FORBIDDABLE = ("data", "operator", "pipeline")  # core.constraints knows them, too; a test holds them together
STAGES = """
    --pin LAYER=STAGE        a layer's stage, from 0; may be repeated
    --keep-together PATTERN  layers that no cut may part, such as 'decoder/block_3/*'; may be repeated
"""
LIMITS = """
    --max-stages N           of the deepest pipeline (default 16); of strategies, ranks of the pipeline
    --memory SIZE            that plans may use of a device, such as '16 GB', '14 GiB' or 16e9 (default: all)
    --forbid                 a kind of parallelism that is not used; may be repeated
"""
SEARCHING = """
    --budget TIME  of all searches together, counted by what is computed (default: 20 s for strategies, 1.2 s for plans
        of stages)
    --thorough     search all stages and micro-batches to the end
    --no-cache     neither read what former runs traced nor keep this one's
    --plan FILE    search nothing: cost and show this plan.json
"""
OF_SEARCHING = (
    *("schedule", "min_gain", "min_stage", "equal_replicas", "cut_at", "target"),
    *("global_batch", "state_factor", "pins", "together", "max_stages", "memory_bytes", "forbidden"),
    *("budget_s", "thorough", "out", "plot"),
)
"""Options that a plan made before has no use for."""
EPILOG = f"""Of a transformer strategies are searched; of other models strategies without tp, cp and ep, and plans of
stages, of which the shorter is the answer. Only plans of stages know --pin, --keep-together, --state-factor,
--microbatch-size, --cut-at PATTERN, --min-stage, --objective length and --for torch-split-spec; a transformer is
profiled first for these.

{kinds_of_models("bert48, t5_11b, gpt3_7b, …: see automap profile --list")}
  a profile                  of automap profile or another tool: no operations, so no plans that partition them

examples:
  automap plan llama3-8b --gpus 32xh100 --for megatron              the best strategy, and its whole command line
  automap plan t5_11b --topo C --global-batch 256 --out plan.json --plot plans.png
  automap plan Llama-3.1-405B/config.json --topo p4d-4 --tp 8 --reserve '4 GB'     the best one of tensor parallelism 8
  automap plan gpt3_7b --gpus 32xa100 --tp 4 --pp 4 --recompute full --price       what a step of this strategy takes
  automap plan examples/bert48_v100.npz --topo A --memory '16 GB' --keep-together 'block_0/*' --pin loss=1

Results are kept in $AUTOMAP_CACHE, else $XDG_CACHE_HOME/automap, else ~/.cache/automap.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to train on which cluster, and what the plan must be like."""
    parser.add_argument("what", metavar="MODEL|FILE", type=name_argument, help="what to train, see below")
    add_topo(parser)
    batch = """
        --global-batch B  samples of a step (default: usual for a transformer's size; 16 micro-batches of others)
        --price           search nothing: price the strategy; fields that are not given have the values shown here
    """
    target = {"choices": PLANNED_FOR}
    add_options(parser.add_argument_group("what for"), TARGET + batch, target=target, price=UNLESS)
    add_strategy(parser)
    add_options(parser.add_argument_group("which training step"), STEP + DEVICE)
    limited = {"memory_bytes": {"type": positive(BYTES)}, "forbidden": {"choices": FORBIDDABLE, "default": []}}
    add_options(parser.add_argument_group("what the plan must be like"), LIMITS + RESTRICTIONS, **limited)
    add_objective(parser.add_argument_group("what to make small"), SCHEDULES)
    lists: dict[str, Any] = {"pins": {"default": []}, "together": {"default": []}}
    group = parser.add_argument_group("what only plans of stages know")
    add_options(group, STAGES + STATE_FACTOR + PROFILED_SIZE, **lists)
    add_options(parser.add_argument_group("how long to look"), SEARCHING, budget_s={"type": positive(SECONDS)})


def request(namespace: argparse.Namespace) -> ExploreRequest | StrategyRequest:
    """What is asked for."""
    from automap_models.requests.plan import plan_request

    if namespace.plan is not None:
        refuse(namespace, OF_SEARCHING, "the plan read has its own")
    if namespace.price:
        refuse(namespace, ("plot",), "is for a search, and --price searches nothing")
    shared = {name: getattr(namespace, name) for name in ("device", "microbatch_size", "plan")}
    shared |= {"cached": not namespace.no_cache, "price": bool(namespace.price), "verbose": namespace.verbose}
    return plan_request(source_of(vars(namespace)), namespace.topo, plan_options(namespace), **shared)


COMMAND = Command(
    description="Find the best way of training a model on a cluster: data parallelism, operator partitioning, "
    "pipeline stages, or stages that do the others inside, all priced by one model and ranked.",
    epilog=EPILOG,
    exits={3: "no plan fits the memory, or not the one that is priced"},
    add_arguments=add_arguments,
    outputs=(
        Output("plan", ("--out",), "write the best plan as JSON"),
        Output("plot", ("--plot",), "draw what each plan consists of (.png, .svg, .pdf)", picture=True),
    ),
    json="print all plans as JSON and nothing else",
    inputs=("what", "topo", "plan"),
    verbose="; of plans of stages also print what was searched, with the outcome of each combination",
    request=request,
    report=reported_by({StrategyRequest: "strategies", ExploreRequest: "exploration"}),
)
