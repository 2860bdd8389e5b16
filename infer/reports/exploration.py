"""All kinds of plans of one model, as people and programs read them: ranked, the best one explained, the proof."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from automap_models.core.cluster import memory_verdict
from automap_models.core.device import Device
from automap_models.core.estimate import strategy_in_words
from automap_models.core.microbatch import SAMPLE_TOKENS, microbatch_size
from automap_models.core.result import TIE, Bound
from automap_models.core.training_state import state_in_words
from automap_models.core.units import counted, listed, percent, rounds, seconds, size, span
from automap_models.errors import Infeasible
from automap_models.formats.atomic import write_json
from automap_models.formats.hardware_yaml import ClusterDocument, read_kinds
from automap_models.formats.staged_plan import SCHEMA, plan_document
from automap_models.formats.strategy_plan import estimate_document
from automap_models.planners.base import maker_in_words
from automap_models.planners.options import given
from automap_models.planners.portfolio.candidate import Candidate
from automap_models.planners.portfolio.explore import Exploration
from automap_models.planners.portfolio.planning import sample_notes
from automap_models.planners.portfolio.space import PlanningSpace
from automap_models.plots.exploration import SIZES, TIMES, draw_candidates
from automap_models.requests import ExploreRequest
from automap_models.requests.exploration import Explored
from automap_models.requests.strategies import StrategyResult
from automap_models.simulate.breakdown import Breakdown
from automap_models.workloads.source import MODELS, notes_of

from ..commands.parsing import in_options
from ..runner import Report
from . import strategies
from .pipeline import heading, search_log_table, stage_columns, tied_facts, time_columns
from .text import TYPED, Column, Table, fact_table, next_facts, plain, plan_file, print_parts


def report(request: ExploreRequest, answer: Explored | StrategyResult | Candidate) -> Report:
    """All plans, ranked, and the best one; the best strategy, where that is shorter; or the plan that is given."""
    if isinstance(answer, StrategyResult):
        of_strategy = strategies.report(request, answer)
        slow = slow_products(answer.problem.work.dtype, [answer.problem.device])
        return replace(of_strategy, warnings=(*of_strategy.warnings, *slow))
    notes = notes_of(request.source)
    if isinstance(answer, Candidate):
        code = 0 if answer.fits else Infeasible.exit_code
        show, document = partial(print_candidate, answer), partial(candidate_document, answer)
        return Report(show, document, warnings=notes, exit_code=code)
    space = answer.exploration.space
    devices: list[Device | None] = [*read_kinds(space.cluster).values()] or [space.device]
    notes += tuple(slow_products(space.model.profile.dtype, devices))
    return Report(
        partial(print_explored, answer, request),
        partial(explored_document, answer),
        {"plan": lambda path: write_json(path, plan_document(answer.report))},
        partial(draw_candidates, answer.exploration),
        warnings=notes,
    )


def slow_products(dtype: str, devices: Iterable[Device | None]) -> Iterator[str]:
    """Which devices have no unit for the type of 16 bits that a model is written in, but for the other one."""
    others = {"bfloat16": "float16", "float16": "bfloat16"}
    for device in devices:
        if device is not None and (other := others.get(dtype)) is not None:
            share = device.matrix.get(dtype, 0.0) / device.matrix.get(other, 1.0)
            if share < 0.5:
                yield f"{device.name} has {percent(share)} of the rate in {dtype} that it has in {other}"


def print_explored(explored: Explored, request: ExploreRequest) -> None:
    """Print an exploration for people."""
    exploration = explored.exploration
    space, best = exploration.space, exploration.best
    first = heading(space.model.profile.model, space.cluster) + samples_in_words(space, explored.usual_batch)
    columns = [*facts(explored), *next_commands(explored, request)]
    print_parts(
        [first],
        [ranking(exploration)],
        [f"best: [bold]{plain(best.name)}[/bold], {shape(best)}"],
        [stages(best)],
        [search_log_table(exploration.search_log, best.step_s)] if request.verbose and exploration.search_log else [],
        [fact_table(columns, (*exploration.notes, *_about_samples(best)))],
    )


def samples_in_words(space: PlanningSpace, usual: bool) -> str:
    """`, 256 samples of 2,048 tokens a step (--global-batch)`; the option where it was not given."""
    tokens = space.model.profile.meta.get(SAMPLE_TOKENS)
    samples_text = f" of {tokens:,} tokens" if isinstance(tokens, int) else ""
    option = " (--global-batch)" if usual else ""
    return (
        "" if space.global_batch is None else f", {counted(space.global_batch, 'sample')}{samples_text} a step{option}"
    )


def print_candidate(plan: Candidate) -> None:
    """Print one plan for people."""
    print_parts(
        [heading(plan.problem.profile.model, plan.problem.cluster), f"[bold]{plain(plan.name)}[/bold], {shape(plan)}"],
        [stages(plan)],
        [fact_table(plan_facts(plan), _about_samples(plan))],
    )


def ranking(exploration: Exploration) -> Table:
    """A row for each sort of plan: what it is, how long a step takes, what it needs, why it is not the best.

    The reasons are the last column where there is room for them, else they stand below the table.
    """
    best, candidates = exploration.best, exploration.candidates
    reasons = {plan.name: exploration.reason(plan) for plan in candidates}
    reasons |= {missing.name: in_options(missing.reason) for missing in exploration.missing}
    styles = ["bold" if plan is best else "" if plan.fits else "dim" for plan in candidates]
    nothing = [""] * len(exploration.missing)

    def wrapped(room: int) -> list[str]:
        return [textwrap.fill(text, room, break_on_hyphens=False) for text in reasons.values()]

    reason_column = Column("why not", wrapped, 36, text=True)
    limits = sorted({group.memory for group in exploration.space.cluster.node_groups})
    memory = f"memory\nof {' or '.join(map(size, limits))}"
    columns = {
        "stages": [str(plan.plan.stages) for plan in candidates],
        "d × t": list(map(degrees_in_words, candidates)),
        "micro-\nbatches": [str(plan.plan.micro_batches) for plan in candidates],
        "step time": [seconds(plan.step_s) for plan in candidates],
        memory: [size(plan.memory_bytes) for plan in candidates],
    }
    named = Column("plan", list(reasons), text=True)
    beside = [Column(heading, [*cells, *nothing]) for heading, cells in columns.items()]
    above = [Column(heading, cells) for heading, cells in columns.items()]
    candidate = Column("plan", [plan.name for plan in candidates], text=True)
    styles += ["dim" for _ in nothing]
    return Table((named, *beside, reason_column), (candidate, *above), styles=styles, reasons=reasons.items())


def degrees_in_words(candidate: Candidate) -> str:
    """`4 × 8`, where all stages are alike; else the ranges: `1–3 × 1`."""
    replicas, tensor = zip(*candidate.degrees, strict=True)
    return " × ".join(span((min(degrees), max(degrees))) for degrees in (replicas, tensor))


def shape(candidate: Candidate) -> str:
    """Stages, micro-batches and their samples, who made the plan."""
    plan = candidate.plan
    samples = microbatch_size(candidate.problem.profile)
    size_text = "" if samples is None else f" of {counted(samples, 'sample')}"
    return (
        f"{counted(plan.stages, 'stage')}, {rounds(plan.micro_batches)}{size_text}, by {maker_in_words(plan.planner)}"
    )


def stages(candidate: Candidate) -> Table:
    """One row a stage: layers, devices, how these share the work, times for one micro-batch, memory."""
    problem, plan, cost = candidate.problem, candidate.plan, candidate.cost
    state_bytes = [float(nbytes) for nbytes in candidate.state_bytes]
    saved_bytes = [float(nbytes) - state for nbytes, state in zip(cost.memory_bytes, state_bytes, strict=True)]
    stage = stage_columns(problem.profile, plan)
    devices = Column("devices", list(map(span, plan.stage_devices(problem.cluster.devices))))
    degrees = Column("d × t", [f"{d} × {t}" for d, t in candidate.degrees])
    forward, backward, transfer, gradients = time_columns(cost, "gradients")
    state, saved = Column("state", list(map(size, state_bytes))), list(map(size, saved_bytes))
    wide = (devices, degrees, forward, backward, transfer, gradients, state, Column("saved\nactivations", saved))
    stacked = (
        devices.over(degrees),
        forward.over(backward),
        transfer.over(gradients),
        state.over(Column("activations", saved)),
    )
    return Table((*stage, *wide), (*stage, *stacked))


def facts(explored: Explored) -> Iterator[tuple[str, str]]:
    """Label and sentence for everything below the tables."""
    exploration, best = explored.exploration, explored.exploration.best
    yield from plan_facts(best)
    if inputs := exploration.space.model.batch_dims:
        dims = sorted(set(inputs.values()))
        where = f"dimension {dims[0]}" if len(dims) == 1 else f"dimensions {', '.join(map(str, dims))}"
        yield "data", f"replicas partition {counted(len(inputs), 'input')} along {where}, proven by propagation"
    yield "pure plans", ", ".join(_against_pure(exploration))
    yield "strategies", in_options(_strategies_in_words(explored))
    yield "optimum", proof_in_words(exploration)
    yield "time", f"{seconds(explored.taken_s)}, looking for plans {seconds(exploration.exploring_s)}"


def _strategies_in_words(explored: Explored) -> str:
    """The best strategy, and by how much it is longer, or what more it would have to gain; or why there is none."""
    strategy = explored.strategy
    if isinstance(strategy, str):
        return strategy
    longer = strategy.cost.step_s / explored.exploration.best.step_s - 1.0
    words = f"{strategy_in_words(strategy.cost)}: {seconds(strategy.cost.step_s)}, {percent(abs(longer))} "
    if longer >= 0.0:
        return words + "longer"
    return f"{words}shorter; to change over to strategies it has to be {percent(explored.needed)} shorter (`min_gain`)"


def next_commands(explored: Explored, request: ExploreRequest) -> Iterator[tuple[str, str]]:
    """The commands to type next, with what was typed: write the plan, run it, hand it to a framework."""
    (commands, plan), (typed, _), source = plan_file("plan.json"), TYPED.get(), shlex.quote(request.source.what)
    runs = source if request.source.kind in MODELS else "MODEL"
    commands += [f"automap run {plan} {runs} --check" + ("" if runs == source else "   # MODEL: what was profiled")]
    if explored.exploration.best.plan.stages > 1:
        commands += [f"automap export {plan} {source} --list   # the frameworks it can be written for"]
    refused = given(request.options, "min_stage", "state_factor")  # beside the field of a strategy
    if not isinstance(explored.strategy, str) and not refused:
        commands += [f"{typed} --zero {explored.strategy.required_plan().zero}   # the best strategy"]
    yield from next_facts(commands)


def plan_facts(plan: Candidate) -> Iterator[tuple[str, str]]:
    """Label and sentence for what is said about any plan."""
    schedule = plan.problem.schedule
    under = "" if schedule is None else f" under {schedule} (length L {seconds(plan.cost.length_s)})"
    yield "step time", f"{seconds(plan.step_s)}{under}: {parts_in_words(plan)}"
    yield "memory", memory_in_words(plan)
    state = state_in_words(plan.problem.profile, plan.problem.state_factor)
    if state is not None:
        yield "state", state
    yield from tied_facts(plan.problem, plan.plan)
    yield from shardings(plan)


def parts_in_words(candidate: Candidate) -> str:
    """`compute 71.0 %, idle time 9.1 %, …`, largest first, what is nothing left out."""
    named = {name: part(candidate.parts) for name, (part, _) in TIMES.items()}
    shares = {what: part_s / candidate.step_s for what, part_s in named.items()}
    largest = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{what} {percent(share)}" for what, share in largest if share > TIE)


def memory_in_words(candidate: Candidate) -> str:
    """What fills the fullest device."""
    parts = candidate.parts
    where = f"stage {parts.fullest}" if candidate.plan.stages > 1 else "each device"
    contents = ", ".join(f"{name} {size(part(parts))}" for name, (part, _) in SIZES.items())
    nbytes = f"{size(parts.memory_bytes)} of {size(candidate.limit_bytes)} on {where}: {contents}"
    groups = candidate.groups_bytes
    beside = f"; beside it {size(groups)} of groups' buffers, as strategies count them" if groups else ""
    return f"{memory_verdict(parts.memory_bytes, candidate.limit_bytes, groups)}: {nbytes}{beside}"


def shardings(candidate: Candidate) -> Iterator[tuple[str, str]]:
    """The shardings of the stages."""
    stages_of: dict[str, list[int]] = {}
    shardings = {sharding.name: sharding for sharding in candidate.problem.all_shardings}
    for s, index in enumerate(candidate.plan.shardings):
        if index:
            stages_of.setdefault(candidate.problem.all_shardings[index].name, []).append(s)
    for name, numbers in sorted(stages_of.items()):
        where = f"stage{'s' if len(numbers) > 1 else ''} {listed(numbers)}"
        divided = counted(len(shardings[name].dims), "variable")
        shared = f"tensor parallel {shardings[name].degree}, {divided} of the step partitioned"
        yield "operators", f"{where}: {shared}, parameters and state among them"


def _against_pure(exploration: Exploration) -> Iterator[str]:
    """How much longer the best plan of each pure kind takes, or that there is none."""
    best = exploration.best
    for kind, name in (("data", "data parallelism"), ("operator", "operator partitioning"), ("pipeline", "pipeline")):
        fitting = [candidate for candidate in exploration.candidates if candidate.kind == kind and candidate.fits]
        if not fitting:
            yield f"{name} does not fit" if any(c.kind == kind for c in exploration.candidates) else f"no {name}"
        elif fitting[0] is not best:
            yield f"{name} {fitting[0].step_s / best.step_s:.2f}×"


def proof_in_words(exploration: Exploration) -> str:
    """How far the best plan can be from the shortest of all."""
    proven, step_s = exploration.proven, exploration.best.step_s
    restrictions = in_options(exploration.space.constraints.in_words)
    shardings = ["these shardings"] if exploration.space.model.shardings else []
    conditions = " and ".join([*shardings, *([restrictions] if restrictions else [])])
    where = "plan of any kind on the grid" + (f" with {conditions}" if conditions else "")
    if not proven.value:
        return "nothing is proven"
    gap = step_s / proven.value - 1.0
    if proven.proof == "exact" and gap <= 1e-9:
        return f"proven: no {where} is shorter"
    return f"at most {percent(gap)} above the shortest {where} (proven lower bound {seconds(proven.value)})"


def _about_samples(candidate: Candidate) -> Iterator[str]:
    """What a reader should know about the micro-batches of a plan and the samples of its replicas."""
    yield from map(in_options, sample_notes(candidate.problem, candidate.plan))


def explored_document(explored: Explored) -> dict[str, Any]:
    """All plans, ranked: plain Python numbers, lists and dictionaries."""
    exploration = explored.exploration
    return {
        "schema": SCHEMA,
        "kind": "explored",
        "model": exploration.space.model.profile.model,
        "cluster": ClusterDocument.from_cluster(exploration.space.cluster).builtins(),
        "global_batch": exploration.space.global_batch,
        "objective": "length" if exploration.space.schedule is None else "step",
        "schedule": exploration.space.schedule,
        "best": plan_document(explored.report),
        "candidates": [
            {**candidate_document(candidate), "why": exploration.reason(candidate)}
            for candidate in exploration.candidates
        ],
        "absent": [
            {"kind": missing.kind, "name": missing.name, "why": in_options(missing.reason)}
            for missing in exploration.missing
        ],
        "optimality": _proven_document(exploration.proven, exploration.best.step_s),
        "batch_dims": exploration.space.model.batch_dims,
        "notes": list(exploration.notes),
        "exploring_s": exploration.exploring_s,
        "strategy": None if isinstance(explored.strategy, str) else estimate_document(explored.strategy.cost),
    }


def candidate_document(candidate: Candidate) -> dict[str, Any]:
    """A plan with what it costs and what that consists of."""
    plan = candidate.plan
    return {
        "kind": candidate.kind,
        "name": candidate.name,
        "planner": plan.planner,
        "stages": plan.stages,
        "micro_batches": plan.micro_batches,
        "cuts": [int(cut) for cut in plan.cuts],
        "device_cuts": [int(cut) for cut in plan.device_cuts],
        "degrees": [{"data": d, "tensor": t} for d, t in candidate.degrees],
        "shardings": [candidate.problem.all_shardings[number].name for number in candidate.plan.shardings],
        "step_s": float(candidate.step_s),
        "length_s": float(candidate.cost.length_s),
        "memory_bytes": candidate.memory_bytes,
        "fits": candidate.fits,
        "breakdown": breakdown_document(candidate.parts),
        "optimality": candidate.proven and _proven_document(candidate.proven, candidate.step_s),
    }


def breakdown_document(parts: Breakdown) -> dict[str, float]:
    """The parts of a step and of the fullest device's memory."""
    return {
        "compute_s": float(parts.compute_s),
        "activation_all_reduce_s": float(parts.activations_s),
        "transfers_s": float(parts.transfers_s),
        "bubble_s": float(parts.bubble_s),
        "gradient_all_reduce_s": float(parts.gradients_s),
        "tied_sum_s": float(parts.tied_s),
        "update_s": float(parts.update_s),
        "state_bytes": float(parts.state_bytes),
        "activation_bytes": float(parts.stash_bytes),
    }


def _proven_document(proven: Bound, step_s: float) -> dict[str, Any] | None:
    bound_s = float(min(proven.value, step_s))  # a plan off the grid may be shorter than all on it
    if not bound_s:
        return None
    return {"bound_s": bound_s, "proof": proven.proof, "gap": step_s / bound_s - 1.0}
