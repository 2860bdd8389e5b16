"""A plan of stages as people read it: what to do, what it gains, how sure that is, its stages, what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from automap_models.core.cluster import Cluster, NodeGroup, group_bytes, memory_verdict
from automap_models.core.microbatch import microbatch_size
from automap_models.core.profile import Profile
from automap_models.core.result import TIE, Alternative, PlanReport
from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.staged import SearchLogEntry, StagedPlan, StagedProblem
from automap_models.core.training_state import state_in_words
from automap_models.core.units import counted, listed, percent, rounds, seconds, shortened, size, span
from automap_models.cost.staged import StagedCost, plan_cost, plan_tied_sums
from automap_models.formats.chrome_trace import trace_document, write_trace
from automap_models.formats.staged_plan import plan_document
from automap_models.planners.base import maker_in_words
from automap_models.plots.exploration import draw_online
from automap_models.plots.pipeline import draw
from automap_models.requests import InferRequest, OnlineRequest
from automap_models.simulate.engine import Timeline
from automap_models.simulate.plan_step import timeline

from ..commands.parsing import in_options
from ..runner import Report
from .text import Column, Table, fact_table, next_facts, plain, plan_file, print_parts

_OUTCOMES = {
    "planned": "not proven in time",
    "does not fit": "does not fit the memory",
    "discarded": "proven longer by bound",
    "proven": "proven longer by search",
}


def report(request: InferRequest | OnlineRequest, answer: PlanReport) -> Report:
    """The plan, its picture and its trace; of an agent's plan, a picture of how the training went."""
    if isinstance(request, OnlineRequest):
        printer, drawing = partial(print_report, answer), partial(draw_online, answer)
        return Report(printer, partial(plan_document, answer), draw=drawing)

    def drawn() -> Timeline:
        schedule = request.options.schedule or answer.problem.schedule or DEFAULT_SCHEDULE
        return timeline(answer.cost, answer.plan.micro_batches, schedule)

    steps = next_commands(answer, request) if request.plan is None else ()
    return Report(
        lambda: print_report(answer, steps, verbose=request.verbose),
        partial(plan_document, answer),
        {"trace": lambda path: write_trace(path, trace_document(drawn()))},
        lambda: draw(answer, drawn()),
    )


def print_report(report: PlanReport, next_steps: Iterable[tuple[str, str]] = (), *, verbose: bool = False) -> None:
    """Print a plan for people: the answer, how sure it is, its stages, what would be shorter, what to type next.

    Args:
        report: of the plan.
        next_steps: label and command a row.
        verbose: whether all that is known about it follows, and what else was tried.
    """
    rows = [*shorter_facts(report), *(facts(report) if verbose else ()), *next_steps]
    print_parts(
        [f"[bold]{plain(headline(report))}[/bold]", plain(f"{optimality_in_words(report)}; {times_in_words(report)}")],
        [heading(report.problem.profile.model, report.problem.cluster), stage_table(report)],
        [search_log_table(report.stages_log, report.cost.step_s)] if verbose and report.stages_log else [],
        [fact_table(rows, map(in_options, report.notes))],
    )


def heading(model: str, cluster: Cluster) -> str:
    """The model, `on C: 4 nodes of 8 devices with 32.0 GB, 130 GB/s inside a node, 3.12 GB/s between nodes`."""
    where = "; ".join(_group_in_words(group, named=bool(cluster.groups)) for group in cluster.node_groups)
    return f"[bold]{plain(model)}[/bold] on {plain(f'{cluster.name}: {where}')}"


def _group_in_words(group: NodeGroup, named: bool) -> str:
    devices = f"{counted(group.nodes, 'node')} of {counted(group.devices_per_node, 'device')}"
    kind = f" ({group.device})" if named and group.device else ""
    speed = "" if group.speed in (None, 1.0) else f", {group.speed:.3g} × as fast as the profile's"
    inside = f", {size(group.intra)}/s inside a node" if group.devices_per_node > 1 else ""
    between = f", {size(group.inter)}/s between nodes" if named or group.nodes > 1 else ""
    return f"{devices}{kind} with {size(group.memory)}{speed}{inside}{between}"


def shape(report: PlanReport) -> str:
    """Stages, micro-batches and, for a new plan, how long planning took."""
    plan = report.plan
    kind = "plain data parallelism" if plan.stages == 1 else counted(plan.stages, "stage")
    return f"{kind}, {rounds(plan.micro_batches)}{_took(report).replace(' in', ', planned in', 1)}"


def stage_table(report: PlanReport) -> Table:
    """One row a stage: its first and last layer, its devices, its times for one micro-batch, its memory."""
    plan, problem, cost = report.plan, report.problem, report.cost
    stage_devices = plan.stage_devices(problem.cluster.devices)
    instructions = Column("instr.", list(map(span, plan.stage_instructions(len(problem.profile)))))
    devices = Column("devices", [f"{span(ends)}\n× {ends[1] - ends[0] + 1}" for ends in stage_devices])
    fixed = (*stage_columns(problem.profile, plan), instructions, devices)
    forward, backward, transfer, all_reduce = time_columns(cost, "all-reduce")
    memory = memory_column(cost)
    wide = (*fixed, forward, backward, transfer, all_reduce, memory)
    return Table(wide, (*fixed, forward.over(backward), transfer.over(all_reduce), memory))


def stage_columns(profile: Profile, plan: StagedPlan) -> tuple[Column, Column]:
    """The number of each stage, and its first and last layer, a line each."""
    ran = plan.stage_instructions(len(profile))

    def cells(width: int) -> list[str]:
        return [layers(profile, *ends, width) for ends in ran]

    return Column("stage", [str(s) for s in range(plan.stages)]), Column("layers", cells, least=18, text=True)


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
    used, limits = ([size(float(nbytes)) for nbytes in amounts] for amounts in (cost.memory_bytes, cost.limit_bytes))
    if len(set(limits)) == 1:
        return Column(f"memory\nof {limits[0]}", used)
    return Column("memory", [f"{memory}\nof {limit}" for memory, limit in zip(used, limits, strict=True)])


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
    length, span_text, schedule = seconds(cost.length_s), seconds(cost.span_s), report.problem.schedule
    if schedule is None:
        yield "step time", f"{length} for one global batch, by the cost model (length L; span {span_text})"
    else:
        yield "step time", f"{seconds(cost.step_s)} for one global batch, simulated under {schedule}"
        yield "length L", f"{length} by the cost model (span {span_text}), {_below(cost)}"
    yield "bottleneck", bottleneck_in_words(report)
    yield "simulated", ", ".join(_simulated(report))
    state = state_in_words(report.problem.profile, report.problem.state_factor)
    if state is not None:
        yield "state", state
    yield from tied_facts(report.problem, report.plan)
    yield "speed-up", ", ".join(_speed_ups(report))
    yield "planned", f"by {maker_in_words(report.plan.planner)}{_took(report)}"


def _took(report: PlanReport) -> str:
    return f" in {seconds(report.taken_s)}" if report.taken_s else ""  # a plan read back took none


def tied_facts(problem: StagedProblem, plan: StagedPlan) -> Iterator[tuple[str, str]]:
    """The parameters of which several stages hold a copy, the three largest, and what summing their gradients takes."""
    nbytes = {parameter.name: parameter.nbytes for parameter in problem.profile.shared_parameters}
    tied = sorted(plan_tied_sums(problem, plan), key=lambda copies: -nbytes[copies.name])
    rest = tied[3:]
    for copies in tied[:3]:
        stages = listed(copies.stages)
        summed = f"summing their gradients takes {seconds(copies.sum_s)} a step"
        yield "tied", f"{copies.name}, {size(nbytes[copies.name])}, has copies in stages {stages}: {summed}"
    if rest:
        rest_s = sum(copies.sum_s for copies in rest)
        yield "tied", f"{len(rest)} smaller ones: summing their gradients takes {seconds(rest_s)} a step"


def _below(cost: StagedCost) -> str:
    """How far the length L is below the step, or above it."""
    share = 1.0 - cost.length_s / cost.step_s
    if abs(share) < 5e-5:
        return "as long as the step"
    return f"{percent(abs(share))} {'below' if share > 0.0 else 'above'} the step time"


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
    """The step of the same plan under the other schedules, and under which it does not fit."""
    for schedule, length_s in report.simulated_length_s.items():
        if schedule == report.problem.schedule:
            continue
        cost = plan_cost(replace(report.problem, schedule=schedule), report.plan)
        more = length_s / report.cost.step_s - 1.0
        against = "as long" if abs(more) < NEARLY else f"{100 * more:+.1f} %"
        memory_text = size(float(cost.memory_bytes[cost.fullest]))
        yield f"{schedule} {seconds(length_s)} ({against}{'' if cost.feasible else f', does not fit: {memory_text}'})"


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


def search_log_table(search_log: Sequence[SearchLogEntry], step_s: float) -> Table:
    """A row for each problem: its best plan's step on the grid, and what came of it.

    Args:
        search_log: of a search.
        step_s: of its answer.
    """
    samples = [attempt.microbatch_size for attempt in search_log]
    outcomes = ["chosen" if entry.chosen else _outcome(entry, step_s) for entry in search_log]
    schedules = [attempt.schedule or "" for attempt in search_log]
    what = [
        Column("stages", [str(attempt.stages) for attempt in search_log]),
        Column("micro-\nbatches", [str(attempt.micro_batches) for attempt in search_log]),
        Column("samples\neach", ["" if count is None else str(count) for count in samples]),
        *([Column("schedule", schedules, text=True)] if any(schedules) else []),
        Column("step", [_or_empty(attempt.step_s) for attempt in search_log]),
        Column("no plan on\nthe grid is\nbelow", [_or_empty(attempt.bound_s) for attempt in search_log]),
    ]
    planner = Column("planner", [maker_in_words(attempt.planner or "") for attempt in search_log], text=True)
    outcome = Column("outcome", outcomes, text=True)
    styles = ["bold" if attempt.chosen else "" for attempt in search_log]
    return Table((*what, planner, outcome), (*what, outcome), styles=styles)


def _or_empty(time_s: float | None) -> str:
    return "" if time_s is None else seconds(time_s)


def _outcome(attempt: SearchLogEntry, best_s: float) -> str:
    if attempt.step_s is not None and attempt.step_s < best_s * (1.0 - TIE):
        return "shorter, but harder to run"
    return "longer" if attempt.stages == 1 and attempt.step_s is not None else _OUTCOMES[attempt.outcome]


NEARLY = 5e-4
"""A step that differs relatively by less is as long to a reader."""


def headline(report: PlanReport) -> str:
    """What to do, its step, what that gains over data parallelism, and whether it fits."""
    schedule = report.problem.schedule
    under = f", {schedule}" if schedule is not None and report.plan.stages > 1 else ""
    parts = [_step(report), _gain(report), memory_in_words(report)]
    return f"{shape_in_words(report)}{under}: {', '.join(filter(None, parts))}"


def shape_in_words(report: PlanReport) -> str:
    """`4 stages × 8 devices, 32 micro-batches of 8 samples`; `2 stages × 29 + 3 devices, …`."""
    plan, devices = report.plan, report.problem.cluster.devices
    samples = microbatch_size(report.problem.profile)
    split = rounds(plan.micro_batches) + ("" if samples is None else f" of {counted(samples, 'sample')}")
    if plan.stages == 1:
        partitioned = any(plan.shardings)
        return f"{'partitioned operators' if partitioned else 'data parallelism'} on {devices} devices, {split}"
    counts = np.diff([0, *plan.device_cuts, devices]).tolist()
    shared = str(counts[0]) if len(set(counts)) == 1 else " + ".join(map(str, counts))
    return f"{counted(plan.stages, 'stage')} × {shared} devices, {split}"


def _step(report: PlanReport) -> str:
    cost = report.cost
    return f"{seconds(cost.step_s)} a step" if report.problem.schedule else f"length L {seconds(cost.length_s)}"


def _gain(report: PlanReport) -> str:
    """Against the best-tuned data parallelism of the same global batch."""
    baseline_s, tuned = report.data_parallel_s, report.data_parallel_micro_batches
    if baseline_s is None:
        return ""
    ratio = baseline_s / report.cost.step_s
    if report.plan.stages == 1 and abs(ratio - 1.0) < NEARLY:
        over_one = report.single_device_s / report.cost.step_s
        return f"{over_one:.3g}× over one device"
    best = "" if tuned is None else f" ({seconds(baseline_s)} in {rounds(tuned)})"
    return f"{ratio:.2f}× over data parallelism{best}"


def memory_in_words(report: PlanReport) -> str:
    """`fits (7.39 GB of 32.0 GB)`, of the fullest device; what its groups hold counts for the verdict alone."""
    cost = report.cost
    used, limit = float(cost.memory_bytes[cost.fullest]), float(cost.limit_bytes[cost.fullest])
    groups = group_bytes(report.plan.stages, *report.plan.degrees(report.problem)[cost.fullest])
    verdict = memory_verdict(used, limit, groups)
    alone = "" if report.data_parallel_s is not None else "; data parallelism does not fit"
    return f"{verdict} ({size(used)} of {size(limit)}){alone}"


def optimality_in_words(report: PlanReport) -> str:
    """How far the step can be from the best one on the grid."""
    proven, plans = report.bound, field_in_words(report)
    if proven is None or not proven.value:
        return "nothing is proven"
    grid, gap = f"on the {report.problem.granularity} grid", report.cost.step_s / proven.value - 1.0
    if report.plan.stages == 1 and not report.stages_log and proven.proof == "exact" and gap <= TIE:
        return "data parallelism is the only plan with one stage"
    if gap < -TIE:
        return f"proven: {percent(-gap)} shorter than every plan with {plans} {grid}, by cuts between its points"
    if gap <= TIE and report.plan.coarse_cuts is None:
        return f"proven: no plan with {plans} {grid} is shorter; cuts between its points may be"
    if proven.proof == "exact":
        where = f"of all plans with {plans} {grid}"
        return f"proven: this is the shortest {where}" if gap <= TIE else f"{percent(gap)} above the shortest {where}"
    return f"at most {percent(gap)} above the shortest plan {grid} (proven lower bound {seconds(proven.value)})"


def field_in_words(report: PlanReport) -> str:
    """The plans that a proof is about: `4 stages`, `1 or 4 stages`, `any of the 17 combinations tried`."""
    if len({attempt.micro_batches for attempt in report.stages_log}) > 1:
        return f"any of the {len(report.stages_log)} combinations tried"
    stages = sorted({attempt.stages for attempt in report.stages_log}) or [report.plan.stages]
    last = counted(stages[-1], "stage")
    stage_text = last if len(stages) == 1 else f"{stages[0]} {'or' if len(stages) == 2 else 'to'} {last}"
    restrictions = report.problem.constraints.in_words
    return f"{stage_text}, {in_options(restrictions)}," if restrictions else stage_text


def times_in_words(report: PlanReport) -> str:
    """Where the profile's times come from, and how far its clock is off measured steps where that is known."""
    from automap_models.formats.hardware_yaml import known_devices, read_device

    profile = report.problem.profile
    name = str(profile.device or "")
    if "not measured" not in str(profile.meta.get("times", "")):
        return f"times{f' of {name}' if name else ''} are the profile's"
    error = read_device(name).left_out if name in known_devices() else None
    if error is None:
        return f"times{f' of {name}' if name else ''} are computed; how far its clock is off is not known"
    least, most = (f"{100 * share:.2g}" for share in error)
    off = f"{least} to {most} % off steps that it was not fitted to, by their source"
    return f"times are computed: the clock of {name} is {off}"


def shorter_facts(report: PlanReport) -> Iterator[tuple[str, str]]:
    """The plans that are shorter than this one, each with what it needs."""
    label, alternatives, baseline_s = "shorter", [*report.shorter], report.data_parallel_s
    if baseline_s is not None and baseline_s < report.cost.step_s * (1.0 - NEARLY):
        do = "to leave out the option that asks for another plan"  # which alone can have kept it from being the answer
        alternatives.append(Alternative(tuned_data_parallelism(report), baseline_s, do))
    for alternative in alternatives:
        step_s = alternative.step_s
        saved = percent(1.0 - step_s / report.cost.step_s)
        requires = f"; needs {alternative.requires}" if alternative.requires else ""
        yield label, f"{seconds(step_s)} (-{saved}): {alternative.what}{requires}"
        label = ""


def tuned_data_parallelism(report: PlanReport) -> str:
    """`data parallelism in 4 micro-batches`, whose number is the best one where that is known."""
    tuned = report.data_parallel_micro_batches
    return "data parallelism" + ("" if tuned is None else f" in {rounds(tuned)}")


def next_commands(report: PlanReport, request: InferRequest) -> Iterator[tuple[str, str]]:
    """The commands to type next: write this plan where it is not written yet, run it, hand it to a framework."""
    counts = np.diff([0, *report.plan.device_cuts, report.problem.cluster.devices])
    (commands, plan), profile = plan_file("plan.json"), shlex.quote(str(request.profile))
    commands += [f"automap run {plan} MODEL --check   # MODEL: the module:factory profiled"]
    if report.plan.stages > 1 and len(set(counts.tolist())) == 1:
        commands += [f"automap export {plan} {profile} --list   # the frameworks it can be written for"]
    if report.problem.schedule is not None and request.topo is not None:
        commands += [f"automap plan {profile} --topo {shlex.quote(str(request.topo))}   # with ZeRO and recomputation"]
    yield from next_facts(commands)
