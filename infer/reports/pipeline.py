"""A plan of stages as people read it: a table of stages, what sets its length, what it gains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from automap_models.core.cluster import Cluster, NodeGroup
from automap_models.core.profile import Profile
from automap_models.core.result import PlanReport
from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.staged import SearchLogEntry, StagedPlan, StagedProblem
from automap_models.core.training_state import state_in_words
from automap_models.core.units import counted, percent, rounds, seconds, shortened, size, span
from automap_models.cost.staged import StagedCost, plan_tied_sums
from automap_models.errors import BadInput
from automap_models.formats.chrome_trace import write_trace
from automap_models.formats.hardware_yaml import known_clusters, read_cluster
from automap_models.formats.plan_json import plan_document
from automap_models.planners.base import maker_in_words
from automap_models.planners.portfolio.planning import planned
from automap_models.plots.pipeline import draw
from automap_models.simulate.engine import Timeline
from automap_models.simulate.step import timeline

from ..commands.parsing import in_options, sized_profile
from ..requests import InferRequest
from ..runner import Report
from .advice import certainty, headline, next_commands, shorter_facts, tuned_data_parallelism
from .text import Column, Steps, fact_table, plain, print_parts, table

if TYPE_CHECKING:
    from rich.table import Table

SHOWN_SHARE = 5e-5  # a smaller one is nothing to a reader
MOST_TIED = 3  # parameters with copies that are named one by one
LEAST_NAMES = 18  # characters of a layer's name, of which its index is to be seen
_OUTCOMES = {
    "planned": "not proven in time",
    "does not fit": "does not fit the memory",
    "discarded": "proven longer by bound",
    "proven": "proven longer by search",
}


def report(request: InferRequest) -> Report:
    """Plan, or read the plan that is given; evaluate it."""
    plan = _planned(request) if request.plan is None else _read_back(request)

    def drawn() -> Timeline:
        schedule = request.options.schedule or plan.problem.schedule or DEFAULT_SCHEDULE
        return timeline(plan.cost, plan.plan.micro_batches, schedule)

    steps = next_commands(plan, str(request.profile), request.topo, request.out) if request.plan is None else ()
    return Report(
        lambda: print_report(plan, steps, verbose=request.verbose),
        partial(plan_document, plan),
        {"trace": lambda path: write_trace(path, drawn())},
        lambda: draw(plan, drawn()),
    )


def _planned(request: InferRequest) -> PlanReport:
    profile = sized_profile(request.profile, None)
    if request.topo is None:
        do = f"choose from {', '.join(known_clusters())} or give a YAML file"
        raise BadInput("no cluster is given", where="--topo", do=do)
    with Steps() as steps:
        return planned(profile, read_cluster(request.topo), request.options, steps.watch)


def _read_back(request: InferRequest) -> PlanReport:
    """A plan in a file, costed again."""
    from automap_models.api import read_plan

    assert request.plan is not None
    return read_plan(request.plan, sized_profile(request.profile, None), request.topo).report


def print_report(report: PlanReport, next_steps: Iterable[tuple[str, str]] = (), *, verbose: bool = False) -> None:
    """Print a plan for people: the answer, how sure it is, its stages, what would be shorter, what to type next.

    Args:
        report: of the plan.
        next_steps: label and command a row.
        verbose: whether all that is known about it follows, and what else was tried.
    """
    shown = [*shorter_facts(report), *(facts(report) if verbose else ()), *next_steps]
    print_parts(
        [f"[bold]{plain(headline(report))}[/bold]", plain(certainty(report))],
        [heading(report.problem.profile, report.problem.cluster), partial(stage_table, report)],
        [partial(search_log_table, report.search_log)] if verbose and report.search_log else [],
        [fact_table(shown, map(in_options, report.notes))],
    )


def heading(profile: Profile, cluster: Cluster) -> str:
    """The model, `on C: 4 nodes of 8 devices with 32.0 GB, 130 GB/s inside a node, 3.12 GB/s between nodes`."""
    where = "; ".join(_group_in_words(group, named=bool(cluster.groups)) for group in cluster.node_groups)
    return f"[bold]{plain(profile.model)}[/bold] on {plain(f'{cluster.name}: {where}')}"


def _group_in_words(group: NodeGroup, named: bool) -> str:
    devices = f"{counted(group.nodes, 'node')} of {counted(group.devices_per_node, 'device')}"
    kind = f" ({group.device})" if named and group.device else ""
    speed = "" if group.speed in (None, 1.0) else f", {group.speed:.3g} × as fast as the profile's"
    return (
        f"{devices}{kind} with {size(group.memory)}{speed}, "
        f"{size(group.intra)}/s inside a node, {size(group.inter)}/s between nodes"
    )


def shape(report: PlanReport) -> str:
    """Stages, micro-batches and, for a new plan, how long planning took."""
    plan = report.plan
    kind = "plain data parallelism" if plan.stages == 1 else counted(plan.stages, "stage")
    return f"{kind}, {rounds(plan.micro_batches)}{_took(report).replace(' in', ', planned in', 1)}"


def stage_table(report: PlanReport, width: int) -> Table:
    """One row a stage: its first and last layer, its devices, its times for one micro-batch, its memory."""
    plan, problem, cost = report.plan, report.problem, report.cost
    held = plan.stage_devices(problem.cluster.devices)
    instructions = Column("instr.", list(map(span, plan.stage_instructions(len(problem.profile)))))
    devices = Column("devices", [f"{span(ends)}\n× {ends[1] - ends[0] + 1}" for ends in held])
    fixed = (*stage_columns(problem.profile, plan), instructions, devices)
    forward, backward, transfer, all_reduce = time_columns(cost, "all-reduce")
    memory = memory_column(cost)
    wide = (*fixed, forward, backward, transfer, all_reduce, memory)
    return table(width, wide, (*fixed, forward.over(backward), transfer.over(all_reduce), memory))


def stage_columns(profile: Profile, plan: StagedPlan) -> tuple[Column, Column]:
    """The number of each stage, and its first and last layer, a line each."""
    ran = plan.stage_instructions(len(profile))

    def cells(width: int) -> list[str]:
        return [layers(profile, *ends, width) for ends in ran]

    return Column("stage", [str(s) for s in range(plan.stages)]), Column("layers", cells, least=LEAST_NAMES, left=True)


def time_columns(cost: StagedCost, gradients: str) -> tuple[Column, Column, Column, Column]:
    """Forward, backward, transfer and sum of gradients of each stage; the last sum under that heading."""
    columns = {
        "forward": cost.forward_s,
        "backward": cost.backward_s,
        "transfer": cost.transfer_s[: len(cost.forward_s) - 1],
        gradients: cost.all_reduce_s,
    }
    cells = {name: [seconds(float(time_s)) for time_s in times_s] for name, times_s in columns.items()}
    cells["transfer"].append("")
    forward, backward, transfer, sums = (Column(name, texts) for name, texts in cells.items())
    return forward, backward, transfer, sums


def memory_column(cost: StagedCost) -> Column:
    """What each stage takes on a device, and of how much; that is said once where all have the same."""
    held, limits = ([size(float(nbytes)) for nbytes in of] for of in (cost.memory_bytes, cost.limit_bytes))
    if len(set(limits)) == 1:
        return Column(f"memory\nof {limits[0]}", held)
    return Column("memory", [f"{own}\nof {limit}" for own, limit in zip(held, limits, strict=True)])


def layers(profile: Profile, first: int, last: int, width: int) -> str:
    """First and last named layer of a stage, a line each; instruction names where the profile has no layers."""
    named = [profile.layer(i) for i in range(first, last + 1) if profile.layer(i)]
    ends = (named[0], named[-1]) if named else (profile.name(first), profile.name(last))
    if ends[0] == ends[1]:
        return shortened(ends[0], width)
    return f"{shortened(ends[0], width)}\nto {shortened(ends[1], width - 3)}"


def facts(report: PlanReport) -> Iterator[tuple[str, str]]:
    """Label and sentence for everything below the table."""
    cost = report.cost
    length, schedule = f"{seconds(cost.length_s)}", report.problem.schedule
    if schedule is None:
        yield (
            "step time",
            f"{length} for one global batch, by the cost model (length L; span {seconds(cost.span_s)})",
        )
    else:
        yield "step time", f"{seconds(cost.step_s)} for one global batch, simulated under {schedule}"
        yield "length L", f"{length} by the cost model (span {seconds(cost.span_s)}), {_below(cost)}"
    yield "bottleneck", bottleneck_in_words(report)
    yield "simulated", ", ".join(_simulated(report))
    state = state_in_words(report.problem.profile, report.problem.state_factor)
    if state is not None:
        yield "state", state
    yield from tied_facts(report.problem, report.plan)
    yield "speed-up", ", ".join(_speed_ups(report))
    yield "planned", f"by {maker_in_words(report.plan.planner)}{_took(report)}"


def _took(report: PlanReport) -> str:
    return f" in {seconds(report.planning_s)}" if report.planning_s else ""  # a plan read back took none


def tied_facts(problem: StagedProblem, plan: StagedPlan) -> Iterator[tuple[str, str]]:
    """The parameters of which several stages hold a copy, the largest first, and what summing their gradients takes."""
    nbytes = {parameter.name: parameter.nbytes for parameter in problem.profile.shared_parameters}
    tied = sorted(plan_tied_sums(problem, plan), key=lambda copies: -nbytes[copies.name])
    for copies in tied[:MOST_TIED]:
        stages = listed(copies.stages)
        summed = f"summing their gradients takes {seconds(copies.sum_s)} a step"
        yield "tied", f"{copies.name}, {size(nbytes[copies.name])}, has copies in stages {stages}: {summed}"
    if len(tied) > MOST_TIED:
        rest_s = sum(copies.sum_s for copies in tied[MOST_TIED:])
        yield "tied", f"{len(tied) - MOST_TIED} smaller ones: summing their gradients takes {seconds(rest_s)} a step"


def listed(numbers: Sequence[int]) -> str:
    """`0 and 3`, `0, 1 and 3`."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def _below(cost: StagedCost) -> str:
    """How far the length L is below the step."""
    share = 1.0 - cost.length_s / cost.step_s
    return f"{percent(share)} below the step time" if share >= SHOWN_SHARE else "as long as the step"


def bottleneck_in_words(report: PlanReport) -> str:
    """What sets the pace: the pseudo-stage on which the steady phase runs (stages even, transfers odd)."""
    cost, times = report.cost, report.plan.micro_batches
    s = cost.pivot // 2
    if cost.pivot % 2:
        what, round_s = f"the transfer between stages {s} and {s + 1}", 2.0 * float(cost.transfer_s[s])
    else:
        what, round_s = f"stage {s}", float(cost.forward_s[s] + cost.backward_s[s])
    share = percent(times * round_s / cost.span_s)
    return f"{what} sets the pace: {times} × {seconds(round_s)} for forward and backward are {share} of the span"


def _simulated(report: PlanReport) -> Iterator[str]:
    for schedule, length_s in report.simulated_length_s.items():
        if schedule != report.problem.schedule:
            yield f"{schedule} {seconds(length_s)} ({100 * (length_s / report.cost.step_s - 1):+.1f} %)"


def _speed_ups(report: PlanReport) -> Iterator[str]:
    step_s, problem = report.cost.step_s, report.problem
    over_one, devices = report.single_device_s / step_s, counted(problem.cluster.devices, "device")
    if problem.slowdowns is not None:  # the profile's device is one; that is what the others count as
        devices += f", worth {problem.capacity:.3g} of these"
    yield f"{over_one:.2f}× over one device ({percent(over_one / problem.capacity)} of {devices})"
    best = tuned_data_parallelism(report)
    for name, baseline_s in ((best, report.data_parallel_s), ("uniform cuts", report.uniform_s)):
        if baseline_s is None:
            yield f"{name} does not fit the memory" if name == best else f"{name} do not fit the memory"
        else:
            yield f"{baseline_s / step_s:.2f}× over {name}"


def search_log_table(search_log: Sequence[SearchLogEntry], width: int) -> Table:
    """A row for each number of stages and micro-batches: its best plan's step on the grid, and what came of it."""
    samples = [attempt.microbatch_size for attempt in search_log]
    layout = [
        Column("stages", [str(attempt.stages) for attempt in search_log]),
        Column("micro-\nbatches", [str(attempt.micro_batches) for attempt in search_log]),
        Column("samples\neach", ["" if count is None else str(count) for count in samples]),
        Column("step", [_or_empty(attempt.step_s) for attempt in search_log]),
        Column("no plan on\nthe grid is\nbelow", [_or_empty(attempt.bound_s) for attempt in search_log]),
        Column("planner", [maker_in_words(attempt.planner or "") for attempt in search_log], left=True),
        Column("outcome", ["chosen" if entry.chosen else _outcome(entry) for entry in search_log], left=True),
    ]
    return table(width, layout, styles=["bold" if attempt.chosen else "" for attempt in search_log])


def _or_empty(time_s: float | None) -> str:
    return "" if time_s is None else seconds(time_s)


def _outcome(attempt: SearchLogEntry) -> str:
    return "longer" if attempt.stages == 1 and attempt.step_s is not None else _OUTCOMES[attempt.outcome]
