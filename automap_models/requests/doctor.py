"""What a file of another program will do: what is refused, what a step takes, and the better setting of that file."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from automap_models.core.cluster import Cluster, MemoryVerdict
from automap_models.core.estimate import Estimate
from automap_models.core.result import Result
from automap_models.core.schedules import require_gain
from automap_models.core.strategy import Strategy, TransformerShape
from automap_models.errors import BadInput
from automap_models.importing.reader import read_setting
from automap_models.importing.setting import Setting
from automap_models.importing.table import APART
from automap_models.planners.base import Watch
from automap_models.planners.options import ExploreOptions
from automap_models.planners.strategies.compare import Alternative, Comparisons
from automap_models.planners.strategies.problem import FREE, UNEQUAL, StrategiesConfig, StrategyProblem
from automap_models.planners.strategies.remedies import at_risk, surely
from automap_models.requests import DoctorRequest, StrategyRequest, cluster_of
from automap_models.requests.strategies import strategy_problem
from automap_models.workloads.measured import architecture_of
from automap_models.workloads.source import Source, SourceKind, source_kind
from automap_models.workloads.transformer import model_work

SEARCH = StrategiesConfig(gap=0.05, guesses=40, refined=2, rounds=2, trials=10, budget_s=4.0)
"""Of the better setting."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DoctorResult(Result[StrategyProblem, Strategy]):
    """What a file says, and the better setting that a search finds: None where there is none.

    Attributes:
        setting: as it was read.
        request: for the price of it.
        current: the price; None where the program refuses it before it trains.
        refusals: what the program refuses at start-up, in sentences.
        changes: lines of the file that become others with the better setting, as `diff` writes them.
        shorter: strategies that are shorter than that, and harder to run than `min_gain` allows.
    """

    setting: Setting
    request: StrategyRequest
    current: Estimate | None
    refusals: tuple[str, ...]
    changes: tuple[str, ...] = ()
    shorter: tuple[Alternative, ...] = ()

    @property
    def verdict(self) -> MemoryVerdict | None:
        """Whether what the file says fits; None where it is refused before that."""
        return None if self.current is None else self.current.verdict

    @property
    def gain(self) -> float | None:
        """Share of the step that the better setting saves; None where one of the two has none."""
        if self.plan is None or self.current is None or not self.current.fits:
            return None
        return 1.0 - float(self.cost.step_s) / self.current.step_s


def solve(request: DoctorRequest, watch: Watch) -> DoctorResult:
    """Read, price, search.

    Raises:
        BadInput: the file cannot be read or contradicts itself, or something that matters is not known or not said.
    """
    begun_s = time.perf_counter()
    require_gain(request.min_gain)
    setting = read_setting(request.what, request.variables, request.vocabulary)
    _require_read(request, setting)
    if request.packed is not None:
        setting = _packed(setting, request.packed)
    cluster = _cluster(request, setting)
    refusals = list(setting.refusals)
    strategy = _strategy(request, setting, cluster, refusals)
    fields = {**setting.fields, **request.fields}
    batch = strategy.global_batch if strategy else fields.get("global_batch")
    pricing = StrategyRequest(
        source=_source(request, setting),
        topo=cluster,
        device=request.device,
        options=ExploreOptions(global_batch=batch),
        fields=dict(_fixed(request, setting, strategy)),
        training=setting.training,
        runtime=setting.runtime,
    )
    problem = strategy_problem(pricing, watch)
    _require_model(request, setting, problem.work.shape)
    if strategy is not None:
        work = problem.work
        problem = replace(problem, work=work.with_modules(strategy.recompute_kinds, work.modules))
    problem = replace(problem, within=setting.limits)
    if "layers" not in setting.searched:
        problem = replace(problem, without=frozenset({UNEQUAL}))
    strategy, current = _priced(problem, setting, strategy, refusals)
    better, shorter = _better(problem, strategy, None if refusals else current, request.min_gain, watch)
    answer: dict[str, Any] = {"plan": None, "cost": None, "shorter": shorter}
    if better is not None:
        after = setting.rewrite(better.strategy)
        answer |= {"plan": better.strategy, "cost": better, "changes": tuple(changed_lines(setting.text, after))}
    return DoctorResult(
        problem=problem,
        status="feasible" if better is not None else "stopped",
        setting=setting,
        request=pricing,
        current=current,
        refusals=tuple(refusals),
        taken_s=time.perf_counter() - begun_s,
        **answer,
    )


def _require_read(request: DoctorRequest, setting: Setting) -> None:
    """Ask for settings that may matter and are not known."""
    ignored = {name.lstrip("-") for name in request.ignored}  # a shell's argument with dashes would be an option
    names = [name for name in setting.unread if not {name.lstrip("-"), "all"} & ignored]
    if names:
        listed = ", ".join(f"`{name}` ({setting.unread[name]})" for name in names[:8])
        what = f"automap cannot price {listed}, which may matter for time or memory"
        example = names[0].lstrip("-")
        do = f"leave out one with `ignore` {example}, or all with `ignore` all"
        raise BadInput(what, where=request.what[:60].partition("\n")[0], do=do)


def _packed(setting: Setting, tokens: int) -> Setting:
    """The same with documents of so many tokens.

    Raises:
        BadInput: the file says that a sample is one document.
    """
    if setting.documents == "one":
        do = "have the file pack samples, or leave this out"
        raise BadInput("the file has one document in a sample", where="`packed`", do=do)
    notes = tuple(note for note in setting.notes if note != APART)
    return replace(setting, training=replace(setting.training, packed=tokens), notes=notes)


def _cluster(request: DoctorRequest, setting: Setting) -> Cluster:
    """The one that is asked for, or the file's number of a kind of device."""
    if request.topo is not None:
        return cluster_of(request.topo)
    if setting.nodes is None or setting.per_node is None or not isinstance(request.device, str):
        number = f"`device` h100 for {setting.nodes} × {setting.per_node} of them, or " if setting.per_node else ""
        raise BadInput("the file does not say which devices it runs on", do=f"give {number}`gpus` 32xh100")
    return cluster_of(f"{setting.nodes}x{setting.per_node}x{request.device}")


def _source(request: DoctorRequest, setting: Setting) -> Source:
    """The model that is asked for, or the file's."""
    sequence = setting.sequence or request.sequence
    if request.model is not None:
        return replace(request.model, sequence=sequence)
    if setting.name:
        return Source(setting.name, source_kind(setting.name), sequence=sequence)
    if setting.model is None:
        missing = ", ".join(f"`{name}`" if name.startswith("-") else name for name in setting.lacking)
        tokens = ", or `vocabulary`" if "vocab" in missing else ""
        raise BadInput(f"the file does not say {missing}", do=f"give `model` NAME, or its config.json{tokens}")
    dtype = Strategy(micro_batch=1, global_batch=1, precision=setting.fields["precision"]).dtype
    shape = setting.model.shape
    work = model_work(architecture_of(setting.model), shape.name, shape.sequence, dtype, setting.training)
    return Source(shape.name, SourceKind.WORKLOAD, model=work)


def _require_model(request: DoctorRequest, setting: Setting, shape: TransformerShape) -> None:
    """Refuse another model than the sizes, or the stages, of the file make."""
    sizes = dict[str, int]()
    if setting.model is not None:
        sizes = {name: getattr(setting.model.shape, name) for name in ("layers", "hidden", "heads", "kv_heads")}
    elif request.model is not None and setting.fields.get("layers"):
        sizes = {"layers": sum(setting.fields["layers"])}
    for name, size in sizes.items():
        if size != getattr(shape, name):
            what = f"{shape.name} has {name} {getattr(shape, name)}, and the file says {size}"
            raise BadInput(what, where="`model`", do="leave it out, or change the file")


def _strategy(request: DoctorRequest, setting: Setting, cluster: Cluster, refusals: list[str]) -> Strategy | None:
    """What the file says; None where it contradicts itself or the cluster, which the program refuses."""
    given, sizes = {**request.fields, "sequence": request.sequence}, {**setting.fields, "sequence": setting.sequence}
    for name, value in given.items():
        if value is not None and sizes.get(name) not in (None, value):
            what = f"is {sizes[name]} in the file"
            raise BadInput(what, where=f"`{name}`", do="change it there, or leave this out")
    try:
        return setting.strategy(cluster.devices, **request.fields)
    except BadInput as error:
        if error.where == "`micro_batch`" and error.what == "is not said":
            raise
        refusals.append(sentence(error))
        return None


def sentence(error: BadInput) -> str:
    """What is wrong, and where, without what to do."""
    return f"{error.where}: {error.what}" if error.where else error.what


def _fixed(request: DoctorRequest, setting: Setting, strategy: Strategy | None) -> Iterator[tuple[str, Any]]:
    """Fields that the file has no words for, and those that a better setting leaves alone."""
    usual = {field.name: field.default for field in fields(Strategy)}
    for name in FREE:
        if name in setting.searched or name in ("layers", "recompute_blocks", "etp", "tower_tp", "micro_batch", "dp"):
            continue
        value = {**usual, **setting.fields, **request.fields}[name]
        if value is not None:
            yield name, getattr(strategy, name) if strategy is not None else value


def _priced(
    problem: StrategyProblem, setting: Setting, strategy: Strategy | None, refusals: list[str]
) -> tuple[Strategy | None, Estimate | None]:
    """The strategy with the layers of its stages, and its price; the refusals get what the program objects to."""
    if strategy is None:
        return None, None
    facts = problem.work.facts
    if setting.split is not None and strategy.layers is None:
        strategy = replace(strategy, layers=setting.split(problem.work.shape.layers, strategy.stages))
    refusals += [objection.what for objection in setting.limits.objections(strategy, facts)]
    try:
        strategy.require_model(problem.work.shape)
    except BadInput as error:
        refusals.append(sentence(error))
        return None, None
    return strategy, problem.costs.pricing.estimate(strategy)


def _better(
    problem: StrategyProblem, strategy: Strategy | None, current: Estimate | None, min_gain: float, watch: Watch
) -> tuple[Estimate | None, tuple[Alternative, ...]]:
    """The best strategy found, where it is shorter by a gain that is worth a change, or the file's is of no use; and
    what is shorter and harder.

    Args:
        current: the price of the file's; None where the program refuses it.
    """
    hosted = strategy is not None and "offload" in strategy.recompute_kinds
    problem = replace(problem, start=[] if strategy is None else [strategy], hosted=hosted)
    try:
        result = at_risk(surely(problem, SEARCH, watch), SEARCH, watch)
    except BadInput:  # the program has no words for the model at all
        return None, ()
    if result.plan is None:
        return None, ()
    pool = Comparisons(result, SEARCH, watch, min_gain=min_gain)
    pool.choose()
    best = pool.estimate(pool.chosen)
    worth = current is None or not current.fits or best.step_s < (1.0 - min_gain) * current.step_s
    return best if worth else None, tuple(pool.shorter())


def changed_lines(before: str, after: str) -> Iterator[str]:
    """Lines that differ, with `-` before those that go and `+` before those that come; of one line, its arguments."""
    if "\n" not in before.strip():
        before, after = (text.replace(" --", "\n--") for text in (before, after))
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    for number, line in enumerate(lines):
        if number > 1 and not line.startswith("@@") and line[1:].strip():
            yield f"{line[0]} {line[1:].rstrip()}"
