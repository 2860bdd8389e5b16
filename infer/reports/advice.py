"""What a person sees first: what to do, what it gains, how sure that is, what would be shorter, what to type next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from automap_models.core.microbatch import microbatch_size
from automap_models.core.result import Alternative, PlanReport
from automap_models.core.units import counted, percent, rounds, seconds, size

from ..commands.parsing import in_options

AT_RISK = 0.92
"""Of a device's memory: above that a plan is at risk, as allocators and communication buffers take some, too."""
NEARLY = 5e-4
"""A step that differs relatively by less is as long to a reader."""
ROUNDING = 1e-9
"""Lengths that differ relatively by no more are equal."""


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
    held = np.diff([0, *plan.device_cuts, devices]).tolist()
    shared = str(held[0]) if len(set(held)) == 1 else " + ".join(map(str, held))
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
    """`fits (7.39 GB of 32.0 GB)`, of the fullest device."""
    cost = report.cost
    held, limit = float(cost.memory_bytes[cost.fullest]), float(cost.limit_bytes[cost.fullest])
    verdict = "fits" if held <= AT_RISK * limit else "at risk"
    alone = "" if report.data_parallel_s is not None else "; data parallelism does not fit"
    return f"{verdict} ({size(held)} of {size(limit)}){alone}"


def certainty(report: PlanReport) -> str:
    """What is proven about better plans, and what the times are."""
    return f"{optimality_in_words(report)}; {times_in_words(report)}"


def optimality_in_words(report: PlanReport) -> str:
    """How far the step can be from the best one on the grid."""
    proven, plans = report.bound, field_in_words(report)
    if proven is None:
        return "nothing is proven"
    grid, gap = f"on the {report.problem.granularity} grid", report.cost.step_s / proven.value - 1.0
    if report.plan.stages == 1 and not report.search_log and proven.proof == "exact" and gap <= ROUNDING:
        return "data parallelism is the only plan with one stage"
    if gap < -ROUNDING:
        return f"proven: {percent(-gap)} shorter than every plan with {plans} {grid}, by cuts between its points"
    if gap <= ROUNDING and report.plan.coarse_cuts is None:
        return f"proven: no plan with {plans} {grid} is shorter; cuts between its points may be"
    if proven.proof == "exact":
        where = f"of all plans with {plans} {grid}"
        return (
            f"proven: this is the shortest {where}" if gap <= ROUNDING else f"{percent(gap)} above the shortest {where}"
        )
    return f"at most {percent(gap)} above the shortest plan {grid} (proven lower bound {seconds(proven.value)})"


def field_in_words(report: PlanReport) -> str:
    """The plans that a proof is about: `4 stages`, `1 or 4 stages`, `any of the 17 combinations tried`."""
    if len({attempt.micro_batches for attempt in report.search_log}) > 1:
        return f"any of the {len(report.search_log)} combinations tried"
    stages = sorted({attempt.stages for attempt in report.search_log}) or [report.plan.stages]
    last = counted(stages[-1], "stage")
    shown = last if len(stages) == 1 else f"{stages[0]} {'or' if len(stages) == 2 else 'to'} {last}"
    restrictions = report.problem.constraints.in_words
    return f"{shown}, {in_options(restrictions)}," if restrictions else shown


def times_in_words(report: PlanReport) -> str:
    """Where the profile's times come from, and how far its clock is off measured steps where that is known."""
    from automap_models.formats.hardware_yaml import known_devices, read_device

    profile = report.problem.profile
    name = str(profile.device or "")
    if "not measured" not in str(profile.meta.get("times", "")):
        return f"times{f' of {name}' if name else ''} are the profile's"
    error = read_device(name).left_out if name in known_devices() else None
    if error is None:
        return f"times{f' of {name}' if name else ''} are computed, by a clock that no measured steps were held against"
    least, most = (f"{100 * share:.2g}" for share in error)
    return f"times are computed: the clock of {name} is {least} to {most} % off steps that it was not fitted to"


def shorter_facts(report: PlanReport) -> Iterator[tuple[str, str]]:
    """The plans that are shorter than this one, each with what it needs."""
    label = "shorter"
    for alternative in (*report.shorter, *_restricted(report)):
        step_s = alternative.step_s
        saved = percent(1.0 - step_s / report.cost.step_s)
        requires = f"; needs {alternative.requires}" if alternative.requires else ""
        yield label, f"{seconds(step_s)} (-{saved}): {alternative.what}{requires}"
        label = ""


def _restricted(report: PlanReport) -> Iterator[Alternative]:
    """Data parallelism where it is shorter, which only an option can have kept from being the answer."""
    baseline_s = report.data_parallel_s
    if baseline_s is not None and baseline_s < report.cost.step_s * (1.0 - NEARLY):
        what = tuned_data_parallelism(report)
        yield Alternative(what, baseline_s, "to leave out the option that asks for another plan")


def tuned_data_parallelism(report: PlanReport) -> str:
    """`data parallelism in 4 micro-batches`, whose number is the best one where that is known."""
    tuned = report.data_parallel_micro_batches
    return "data parallelism" + ("" if tuned is None else f" in {rounds(tuned)}")


def next_commands(report: PlanReport, profile: str, topo: str | None, out: Path | None) -> Iterator[tuple[str, str]]:
    """The commands to type next: write the plan where it is not written yet, run it, hand it to a framework."""
    plan, held = str(out or "plan.json"), np.diff([0, *report.plan.device_cuts, report.problem.cluster.devices])
    if out is None:
        yield "next", f"automap-infer {profile}{'' if topo is None else f' --topo {topo}'} --out {plan}"
    yield "" if out is None else "next", f"automap-run {plan} MODEL --check   (MODEL: the module:factory profiled)"
    if report.plan.stages > 1 and len(set(held.tolist())) == 1:
        yield "", f"automap-export {plan} {profile} --list   (the frameworks it can be written for)"
