"""A strategy as people and programs read it: its price, the proof, and what each choice of the best one buys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, Any

from automap_models.core.cluster import Cluster
from automap_models.core.estimate import DeviceMemory, Estimate, strategy_in_words
from automap_models.core.result import Result
from automap_models.core.strategy import ONCE_A_NODE, ZERO_STAGES, Strategy
from automap_models.core.units import counted, percent, seconds, size, span
from automap_models.export.targets import TARGETS, training_limits
from automap_models.formats.strategy_plan import estimate_document
from automap_models.planners.strategies.compare import NO_FRAMEWORK, Alternative
from automap_models.planners.strategies.problem import StrategyProblem
from automap_models.requests import PlanRequest
from automap_models.requests.strategies import StrategyResult, command_line, frameworks_of, gap, searched_document
from automap_models.workloads.source import notes_of

from ..runner import Report
from .pipeline import heading
from .run_cost import choice_facts, exit_code, names, run_document, run_facts, runs_table
from .text import TYPED, Column, Table, fact_table, in_lines, next_facts, plain, plan_file, print_parts

if TYPE_CHECKING:
    from rich.console import RenderableType


def report(request: PlanRequest, answer: StrategyResult | Estimate) -> Report:
    """The price of a strategy; or the best one, and what its choices buy."""
    notes = notes_of(request.source, traced=False)
    if isinstance(answer, Estimate):
        cluster = request.cluster
        further = list(run_facts(request, cluster, answer))
        show = partial(print_estimate, answer, title_of(request, answer), further=further)
        return Report(
            show,
            lambda: estimate_document(answer) | run_document(request, cluster, answer),
            warnings=notes,
            exit_code=exit_code(request, [(cluster, answer)]),
        )
    cluster = answer.problem.cluster
    sizes = [(one.problem.cluster, one.cost) for one in answer.sizes if one.plan is not None]
    further = list(run_facts(request, cluster, answer.cost, sizes))
    further += [*choice_facts(answer.choice, cluster), *_idle(answer), *_batch(answer)]
    title = title_of(request, answer.cost, cluster)
    return Report(
        partial(print_searched, answer, title, further, runs_table(request, sizes)),
        lambda: _document(request, answer),
        draw=answer.plot,
        warnings=notes,
        exit_code=exit_code(request, sizes or [(cluster, answer.cost)]),
    )


def _document(request: PlanRequest, answer: StrategyResult) -> dict[str, Any]:
    """A search as plain JSON types, with the training that is asked for."""
    document = searched_document(answer) | run_document(request, answer.problem.cluster, answer.cost)
    for written, sized in zip(document.get("sizes", ()), answer.sizes, strict=True):
        if sized.plan is not None:
            written["best"] |= run_document(request, sized.problem.cluster, sized.cost)
    return document


def title_of(request: PlanRequest, estimate: Estimate, cluster: Cluster | None = None) -> str:
    """`gpt2 on 8xa100: 1 node of 8 devices …; by the clock of a100, 512 samples of 1,024 tokens a step`."""
    shape, noun = estimate.facts.shape, "sample" if estimate.facts.training.sequences == 1 else "pair"
    samples = counted(estimate.strategy.global_batch, noun)
    tokens = "" if shape is None else f" of {shape.sequence:,} tokens"
    usual = "" if request.options.global_batch else " (--global-batch)"
    runtime = plain(estimate.runtime) or "programs in general (--runtime)"
    on = heading(estimate.model, cluster or request.cluster)
    where = f"{on}; by the clock of {plain(estimate.device)} for {runtime}"
    if estimate.imbalance != 1.0:
        where += f", {estimate.imbalance:g} times the mean of tokens for the experts of the fullest device"
    return f"{where}, {samples}{tokens} a step{usual}"


def print_searched(
    searched: StrategyResult, title: str, further: Sequence[tuple[str, str]] = (), runs: Table | None = None
) -> None:
    """Print the best strategy for people.

    Args:
        title: the first lines.
        further: labels and sentences.
        runs: what a training takes on clusters of other sizes.
    """
    compared = searched.compared
    about = (lines(searched) for lines in (_order, _limits, _shorter, _stages, _proof))
    print_estimate(
        searched.cost,
        title,
        "best strategy",
        [kinds_table(searched)] if len(compared.kinds) > 1 else [],
        [choices_table(searched)] if compared.choices else [],
        [less_memory_table(compared.memory)] if len(compared.memory) > 1 else [],
        [sizes_table(searched.sizes)] if searched.sizes else [],
        [runs] if runs is not None else [],
        further=chain(further, *about),
        below=list(_next(searched)),
    )


def _next(searched: StrategyResult) -> Iterator[RenderableType]:
    """The command that starts the strategy, and what to type next."""
    from rich.text import Text

    within, (command, notes) = searched.problem.within, command_line(searched)
    if command is not None:
        yield Text(in_lines(command, 100) + "\n", no_wrap=True, overflow="ignore")
    if within is None or within.name not in TARGETS:
        names, what = frameworks_of(searched), "its command line or configuration"
        if not names:
            names, what = [*training_limits()], "the best strategy that it runs; none of them runs this one"
        others = f"or {', '.join(names[1:])}: " if names[1:] else ""
        commands = [f"{TYPED.get()[0]} --for {names[0]}   # {others}{what}"]
    else:
        commands, strategy = plan_file("strategy.json")
        commands += [f"automap export {strategy} --to {within.name} --check"]
    yield fact_table(next_facts(commands), notes)


def _stages(searched: StrategyResult) -> Iterator[tuple[str, str]]:
    """How much longer the best plan of stages takes, which has unequal devices or cuts inside blocks, but no ZeRO."""
    plan = searched.stages
    if plan is not None:
        longer = percent(plan.step_s / searched.cost.step_s - 1.0)
        yield "without these", f"ZeRO and recomputation: {plan.name}, {seconds(plan.step_s)}, {longer} longer"


def _proof(result: StrategyResult) -> Iterator[tuple[str, str]]:
    share, counts = gap(result), result.facts
    subspaces = f"{counts['families']:,} subspaces of {counts['divisions']:,} layouts were searched"
    within = result.problem.within
    which = "no strategy of the grid" if within is None else f"no strategy of the grid that {within.name} runs"
    if result.status == "optimal":
        yield "proof", f"{which} is shorter ({subspaces})"
    elif share is not None:
        yield "proof", f"{which} is more than {percent(share)} shorter ({subspaces})"
    before = f", and reading the model before it {seconds(result.model_s)}" if result.model_s >= 1.0 else ""
    yield "search", f"took {seconds(result.taken_s)}{before}"


def _shorter(searched: StrategyResult) -> Iterator[tuple[str, str]]:
    return shorter(searched.cost, searched.compared.shorter)


def shorter(best: Estimate, alternatives: Iterable[Alternative]) -> Iterator[tuple[str, str]]:
    """Strategies that are shorter than the best one and harder to run, and what each of them needs."""
    for alternative in alternatives:
        estimate, requirements = alternative.estimate, ", ".join(alternative.requires)
        assert estimate is not None
        if NO_FRAMEWORK in alternative.requires:
            words = f"{seconds(estimate.step_s)}, {strategy_in_words(estimate)}"
            what = f"no framework trains the shortest strategy ({words})"
            yield "shorter", f"{what}: the best one is of those that one trains"
            continue
        layers = estimate.strategy.layers
        if layers is not None and replace(estimate.strategy, layers=None) == replace(best.strategy, layers=None):
            requirements += f" (--layers {','.join(map(str, layers))})"
        share = percent(1 - estimate.step_s / best.step_s)
        yield "shorter", f"by {share}, {seconds(estimate.step_s)}: {strategy_in_words(estimate)}; needs {requirements}"


def _idle(answer: StrategyResult) -> Iterator[tuple[str, str]]:
    """Which devices stand idle, and what all of the cluster would take."""
    if answer.choice is None or not answer.choice.idle:
        return
    parts = [
        f"{nodes.devices} of {nodes.among} {nodes.device or 'devices'}{f' in {nodes.zone}' if nodes.zone else ''}"
        for nodes in answer.choice.idle
    ]
    name, best = answer.choice.part_of, answer.cost
    results = [one for one in answer.sizes if one.problem.cluster.name == name]
    full = results[0].cost if results else None
    what = f"no strategy {'was found that fits' if results else 'divides'} all of {name}"
    if full is not None:
        used = [
            f"{degree} {size}" for degree in ("tp", "cp", "pp", "dp") if (size := getattr(full.strategy, degree)) > 1
        ]
        longer = full.step_s / best.step_s - 1
        what = f"with all of {name} in one job a step takes {seconds(full.step_s)} ({', '.join(used)}), "
        reason = f"{percent(longer)} longer: {why_not(Alternative(name, full), best)}"
        what += reason if longer >= 0 else f"{percent(-longer)} shorter"
    yield "idle", f"{', '.join(parts)}: {what}"


def _batch(answer: StrategyResult) -> Iterator[tuple[str, str]]:
    """With how many samples the devices would train more."""
    if (even := answer.even_batch) is not None:
        more = percent(even.tokens_per_s / answer.cost.tokens_per_s - 1)
        samples = f"{even.strategy.global_batch:,} samples a step (--global-batch)"
        devices = f"all {even.strategy.devices} devices share evenly, {more} more tokens a second are trained"
        yield "batch", f"with {samples}, which {devices}: {strategy_in_words(even)}"


def _order(result: StrategyResult) -> Iterator[tuple[str, str]]:
    """Which kind of nodes has the first ranks of the pipeline."""
    groups = result.problem.cluster.groups
    if len(groups) > 1:
        kinds = [f"{group.nodes * group.devices_per_node} {group.device or 'devices'}" for group in groups]
        yield "order of nodes", f"ranks of the pipeline have, from the first on, {', '.join(kinds)}"


def _limits(searched: StrategyResult) -> Iterator[tuple[str, str]]:
    """What it costs that a framework is to run the strategy."""
    within, free, best = searched.problem.within, searched.compared.unlimited, searched.cost
    if within is None or free is None:
        return
    if free.step_s >= best.step_s:
        yield f"for {within.name}", "costs nothing: no shorter strategy was found without its limits"
        return
    gain = f"without its limits a step takes {seconds(free.step_s)} or less ({strategy_in_words(free)})"
    yield f"for {within.name}", f"costs {percent(best.step_s / free.step_s - 1)} at least: {gain}"


def _columns(rows: Sequence[Alternative], best_s: float, strategy: str = "strategy") -> dict[str, Column]:
    """What tables say of strategies, by heading; that of the strategy itself may be another one."""
    estimates = [row.estimate for row in rows]
    texts = {
        "step": [_step(row) for row in rows],
        "longer by": [percent(estimate.step_s / best_s - 1) if estimate else "" for estimate in estimates],
        "fullest device": [size(estimate.peak_memory) if estimate else "" for estimate in estimates],
    }
    columns = {heading: Column(heading, cells) for heading, cells in texts.items()}
    named = [strategy_in_words(estimate) if estimate else "" for estimate in estimates]
    return {**columns, "strategy": Column(strategy, named, text=True)}


def _step(alternative: Alternative) -> str:
    if alternative.estimate is not None:
        return seconds(alternative.estimate.step_s)
    if alternative.instead:
        return "longer"
    return "nothing fits" if alternative.ruled_out else "none found"


def kinds_table(searched: StrategyResult) -> Table:
    """One row a kind of parallelism with its best strategy, and why it is not the best one; or that stands below."""
    best, kinds = searched.cost, searched.compared.kinds
    reasons = {alternative.name: why_not(alternative, best) for alternative in kinds}
    columns = _columns(kinds, best.step_s)
    narrow = (Column("parallelism", list(reasons), text=True), columns["step"], columns["fullest device"])
    wide = (*narrow, Column("why not", list(reasons.values()), text=True))
    return Table((*wide, columns["strategy"]), wide, narrow, reasons=reasons.items())


def why_not(alternative: Alternative, best: Estimate) -> str:
    """The two parts of the step by which another strategy loses most; nothing for the best one."""
    other = alternative.estimate
    if alternative.instead:
        return f"none shorter than {alternative.instead}"
    if other is None:
        memory = f"fits {size(min(best.memory_bytes))}"
        return f"none of these {memory}" if alternative.ruled_out else f"none was found that {memory}"
    if other.step_s < best.step_s and alternative.requires:
        return f"shorter by {percent(1 - other.step_s / best.step_s)}, and needs {', '.join(alternative.requires)}"
    if other.step_s <= best.step_s:
        return ""
    longer = {name: getattr(other.parts, name) - getattr(best.parts, name) for name in PARTS}
    some = (name for name in longer if longer[name] >= 0.001 * best.step_s)  # less is no reason
    most = sorted(some, key=lambda name: -longer[name])[:2]
    return ", ".join(f"{seconds(longer[name])} more of {PARTS[name]}" for name in most) or "as long, nearly"


def less_memory_table(estimates: Sequence[Estimate]) -> Table:
    """One row a strategy of which none is both shorter and emptier."""
    rows = [Alternative("", estimate) for estimate in estimates]
    columns = _columns(rows, estimates[0].step_s, "strategy with less memory")
    layout = (columns["fullest device"], columns["step"], columns["longer by"])
    return Table((*layout, columns["strategy"]), layout)


def choices_table(searched: StrategyResult) -> Table:
    """One row a choice that the best strategy makes: the best one without it; what that needs stands below."""
    rows = [Alternative("best", searched.cost), *searched.compared.choices]
    columns = _columns(rows, searched.cost.step_s)
    strategy = columns.pop("strategy")
    layout = (Column("what each choice buys", [row.name for row in rows], text=True), *columns.values())
    further = [(row.name, ", ".join(row.requires)) for row in rows if row.requires]
    return Table((*layout, strategy), layout, reasons=further, title="what else that needs")


def sizes_table(results: Sequence[Result[StrategyProblem, Strategy]]) -> Table:
    """One row a size of the cluster."""
    columns = _columns([Alternative("", result.cost, ruled_out=True) for result in results], 1.0)
    layout = (
        names([result.problem.cluster for result in results]),
        columns["step"],
        Column(
            "samples/s" if results[0].problem.work.facts.shape is None else "tokens/s a device",
            [throughput(result.cost) if result.cost else "" for result in results],
        ),
        columns["fullest device"],
    )
    return Table((*layout, columns["strategy"]), layout)


PARTS = {
    "compute": "compute",
    "recompute": "recomputation",
    "tensor_parallel": "sums of tensor parallelism",
    "context_parallel": "keys and values of context parallelism",
    "expert_parallel": "tokens to experts and back",
    "bubble": "idle time (bubble)",
    "transfers": "transfers between ranks",
    "data_parallel": "gradients and weights of data parallelism",
    "optimizer": "optimizer",
}
"""Field of `StepParts` → how people call it."""


def print_estimate(
    estimate: Estimate,
    title: str,
    what: str = "strategy",
    *tables: Sequence[Table],
    further: Iterable[tuple[str, str]] = (),
    below: Sequence[RenderableType] = (),
) -> None:
    """Print a price for people, and what else is known of the strategy.

    Args:
        title: the first lines.
        what: how the strategy is called.
        tables: below its own.
        further: labels and sentences below its own.
        below: all of this.
    """
    print_parts(
        [title, f"{what}: {strategy_in_words(estimate)}"],
        [parts_table(estimate)],
        [memory_table(estimate)],
        *tables,
        [fact_table([*facts(estimate), *further])],
        below,
    )


def parts_table(estimate: Estimate) -> Table:
    """One row a part of the step that is not nothing, the step last; in a pipeline of the rank that others wait for."""
    whose = f"part of the step, rank {estimate.parts_rank}" if estimate.strategy.pp > 1 else "part of the step"
    parts = {PARTS[name]: value for name, value in estimate.parts._asdict().items() if value > 1e-6 * estimate.step_s}
    parts["step"] = estimate.step_s
    layout = (
        Column(whose, list(parts), text=True),
        Column("time", list(map(seconds, parts.values()))),
        Column("share", [percent(value / estimate.step_s) for value in parts.values()]),
    )
    return Table(layout)


MOST_RANKS = 10
"""Rows of a table of ranks; in a deeper pipeline the first, the fullest and the last rank have rows of their own."""


def memory_table(estimate: Estimate) -> Table:
    """One row a rank of the pipeline, bytes of one of its devices; ranks that hold the same share a row.

    In a deep pipeline a row of several ranks has the most that one of them holds.
    """
    memory, last = estimate.memory, len(estimate.memory) - 1
    alike = [[*ranks] for _, ranks in groupby(range(last + 1), key=memory.__getitem__)]
    if len(alike) > MOST_RANKS:
        fullest = max(range(last + 1), key=lambda rank: memory[rank].total)
        ends = sorted({0, 1, fullest, fullest + 1, last, last + 1})
        alike = [[*range(first, stop)] for first, stop in pairwise(ends)]
    kinds = [name for name in DeviceMemory._fields if any(getattr(one, name) for one in memory)]

    def column(name: str) -> Column:
        amounts = [{getattr(memory[rank], name) for rank in ranks} for ranks in alike]
        return Column(name, ["≤ " * (len(several) > 1) + size(max(several)) for several in amounts])

    rank = Column("rank", [span((ranks[0], ranks[-1])) for ranks in alike], text=True)
    columns, total, state = list(map(column, kinds)), column("total"), column("state")
    others = [one for one in columns if one.heading not in ("weights", "gradients", "optimizer")]
    return Table((rank, *columns, total), (rank, state, *others, total))


def throughput(estimate: Estimate) -> str:
    """Tokens on a device, or samples of a model that has no tokens."""
    if estimate.facts.shape is None:
        return f"{estimate.strategy.global_batch / estimate.step_s:,.3g}"
    return f"{estimate.tokens_per_s_per_device:,.0f}"


def clock_error(estimate: Estimate) -> str | None:
    """How far the clock is off steps that it was not fitted to; None of a profile."""
    from automap_models.formats.hardware_yaml import known_devices, read_device
    from automap_models.formats.runtime_yaml import read_runtime

    shape, names = estimate.facts.shape, ", ".join(estimate.unfitted)
    if names:
        return f"unfitted: data sheet of {names}, and the mean constants of devices that have a fit"
    device = read_device(estimate.device) if estimate.device in known_devices() else None
    if device is not None and not device.fitted_to:
        return f"unfitted: data sheet of {device.name}, and the constants of a device of its generation"
    if shape is None:
        return None
    runtime = read_runtime(estimate.runtime) if estimate.runtime else None
    error = None if runtime is None else runtime.mixtures_left_out if shape.experts else runtime.left_out
    if error is None and not shape.experts and device is not None:
        error = device.left_out
    if error is None:
        what = "mixtures of experts" if shape.experts else "steps that it was not fitted to"
        return f"how far it is off {what} is not known" + (" (--runtime)" if not estimate.runtime else "")
    least, most = (f"{100 * share:.2g}" for share in error)
    return f"{least} to {most} % off steps that it was not fitted to, by their source"


def facts(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Label and sentence for everything below the tables."""
    yield "step time", seconds(estimate.step_s)
    if estimate.facts.shape is None:
        yield "throughput", f"{throughput(estimate)} samples/s"
    else:
        yield "throughput", f"{throughput(estimate)} tokens/s on a device"
        yield "MFU", f"{percent(estimate.mfu)} of the peak go into the model's own products"
    if not estimate.facts.training.is_full:
        yield "trains", str(estimate.facts.training)
    alike = len({module._replace(name="") for module in estimate.modules}) == 1
    for module in estimate.modules if not alike else ():
        last, degrees = module.first_device + module.devices - 1, module._asdict()
        divided = [f"{name} {degrees[name]}" for name in ("tp", "cp", "pp", "dp") if degrees[name] > 1]
        yield module.name, f"devices {module.first_device} to {last}: {', '.join(divided) or 'each alone'}"
    dispatcher = estimate.strategy.dispatcher
    if estimate.strategy.ep > 1 and dispatcher in ONCE_A_NODE:
        yield "experts", f"{ONCE_A_NODE[dispatcher]} has to be installed; --dispatcher alltoall plans without it"
    if estimate.host[0]:
        fits = "hold" if estimate.host[0] <= estimate.host[1] else "are too little for"
        s, of_host = estimate.strategy, " of ".join(map(size, estimate.host))
        parts = ["the optimizer's state"] * (s.offload != "none") + ["activations"] * ("offload" in s.recompute_kinds)
        yield "hosts", f"{of_host} a device {fits} {' and '.join(parts)}; --offload none plans without"
    if (error := clock_error(estimate)) is not None:
        yield "clock", error
    nbytes, limit, rank = estimate.fullest
    where = f"rank {rank}" if len(estimate.memory) > 1 else "each device"
    room = f"{size(nbytes)} to {size(estimate.upper_bytes(nbytes))} of {size(limit)} on {where}"
    helps = "" if estimate.verdict == "fits" else f"; {less_memory(estimate, estimate.memory[rank])} take less"
    yield "memory", f"{estimate.verdict}: {room}{helps}"


def less_memory(estimate: Estimate, memory: DeviceMemory) -> str:
    """What lessens most of what a device holds, of what the strategy leaves and the model can: profiles have no tp."""
    s = estimate.strategy
    if memory.state > memory.total / 2:
        helps = {"higher stages of ZeRO": s.zero < max(ZERO_STAGES) and s.dp > 1}
    else:
        helps = {"more recomputation": {*s.recompute_kinds} != {"full"}, "smaller micro-batches": s.micro_batch > 1}
    helps |= {"more tp": estimate.facts.shape is not None, "more pp": memory.state > memory.total / 2}
    *others, last = [words for words, is_left in helps.items() if is_left] or ["more devices"]
    return f"{', '.join(others)} or {last}" if others else last
