"""`automap fit`: whether a model fits a cluster, and how; or what would fit (formats.md)."""

from __future__ import annotations

import argparse

from automap_models.core.schedules import SCHEDULES
from automap_models.core.units import BYTES, SECONDS
from automap_models.export.targets import PLANNED_FOR
from automap_models.requests import FitRequest

from ..runner import Command, reported_by
from .parsing import DEVICE, PROFILED_SIZE, STEP, add_options, add_topo, name_argument, positive, source_of
from .strategies import TARGET, add_strategy, plan_options

BATCH = """
    --global-batch B  samples between two updates (default: usual for the model's size, 0.5 to 4 M tokens)
    --schedule        under which the ranks of a pipeline run; searched where it is not given
    --memory SIZE     memory of a device that may be used, such as '16 GB', '14 GiB' or 16e9 (default: all)
    --budget TIME     for trying what would fit, counted by what is computed (default 4 s)
"""
EPILOG = """The answer is one of
  fits          the best strategy found leaves 8 % of every device, by which estimates of memory fall short
  at risk       all that is estimated has room, and less than these 8 % are left
  does not fit  no strategy has room; each change that is named was searched and has room, the least one first

Memory is that of `automap plan`, which also proves how near the best its strategy is. MODEL|FILE is what it takes, too.

examples:
  automap fit llama3-8b --gpus 8xh100                      the best strategy, and what fills a device
  automap fit llama3-70b --gpus 8xh100 --sequence 8192     does not fit: fewer tokens, or more devices, do
  automap fit llama3-70b --gpus 32xh100 --tp 8 --zero 1 --micro-batch 4 --for megatron
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to train on which cluster, and what of the strategy is given."""
    parser.add_argument("what", metavar="MODEL|FILE", type=name_argument, help="what to train, as of automap plan")
    add_topo(parser)
    add_options(parser.add_argument_group("which training step"), STEP + DEVICE + PROFILED_SIZE)
    add_options(
        parser.add_argument_group("what is asked for"),
        BATCH + TARGET,
        schedule={"choices": SCHEDULES},
        memory_bytes={"type": positive(BYTES)},
        budget_s={"type": positive(SECONDS)},
        target={"choices": PLANNED_FOR},
    )
    add_strategy(parser, sized=False)


def request(namespace: argparse.Namespace) -> FitRequest:
    """What is asked for."""
    from automap_models.requests.plan import plan_request

    shared = {name: getattr(namespace, name) for name in ("device", "microbatch_size", "verbose")}
    source, options = source_of(vars(namespace)), plan_options(namespace)
    answerable = plan_request(source, namespace.topo, options, fit=True, cached=True, **shared)
    assert isinstance(answerable, FitRequest)
    return answerable


COMMAND = Command(
    description="Say whether a model fits the memory of a cluster, by which strategy, and what each kind of memory is; "
    "or what would fit.",
    epilog=EPILOG,
    exits={0: "it fits, perhaps at risk", 3: "it does not fit"},
    add_arguments=add_arguments,
    json="print the verdict, the memory and the strategies as JSON and nothing else",
    inputs=("what", "topo"),
    request=request,
    report=reported_by("fit"),
)
