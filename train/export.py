"""A trained policy as an ONNX file: built, written with its metadata, and held against the network state by state."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxscript.optimizer
import torch
from torch import Tensor

from automap_models.envs.pipeline.cost_to_go import CostToGo
from automap_models.envs.pipeline.env import SCALARS, Partial, Problems, legal_actions
from automap_models.formats.atomic import write_bytes
from automap_models.planners.staged.policy_file import PLANS, Policy
from automap_models.rl import targets
from automap_models.rl.networks.pipeline import FlatQNetwork, LookAheadQNetwork
from automap_models.version import __version__

from .data import PipelineData
from .onnx_graph import Pieces, planner_graph, strip
from .onnx_pieces import (
    PLAN,
    PROBLEM,
    REST,
    ROW_PROBLEM,
    ROW_TABLES,
    STAGES,
    START,
    TABLES,
    Begin,
    DeviceCut,
    End,
    FirstCut,
    Level,
    Piece,
    Stage,
    example_tensors,
)
from .rainbow import RainbowModule

STATES = 10_000
"""Least number of states that a policy must agree in before it is kept."""
TOLERANCE = 1e-5
"""Of values up to 1, and of larger ones in proportion: rewards of 1 / L have no scale of their own."""
ROUNDING = 2.0
"""Times what torch's own values of a flat network are off float64 at most, where that is more than the tolerance: after
1.4 million episodes of experiment=paper it is 3e-5, and the file's, summed in another order, as much from torch's."""
FLOAT32_TOLERANCE = 1e-6
"""Actions whose values differ by less are equally greedy: which of them wins is up to rounding."""
EQUAL_ENTRIES = 0.999
"""Least share of the tables' entries that hold the same plan; in the others two plans are equally good but for
rounding, and either is a right look-ahead."""
EQUAL_STATES = 0.999
"""Least share of the states in which every value agrees. In the others two device cuts tie but for rounding behind
some cut (pipeline_features): either is a right look-ahead, with features of its own. Decisions must agree everywhere.
"""
BEAM = 6
"""First cuts followed for each problem, or more where there are too few problems: states off the greedy path count."""
CHUNK = 64


class Visited(NamedTuple):
    """States at one step of the file's plans, with what the file says there.

    cuts: whether it is a step that cuts instructions; values: of the cuts or of the device cuts; action: the one taken.
    """

    problems: Problems
    partial: Partial
    cuts: bool
    values: Tensor
    action: Tensor


def check_parity(module: RainbowModule, path: Path, problems: Problems, states: int = STATES) -> dict[str, float]:
    """Let the file plan in onnxruntime and compare every value and decision on the way with the module in torch.

    Args:
        problems: what to plan; from the first as many as give enough states, and from more first cuts where they are
            too few for that.
        states: how many states must agree before the comparison ends.

    Returns:
        States in which all legal values agree, the largest difference of these (in proportion where values are above
        1), the share of such states, and of actions that are greedy in torch, too, all on the file's own cost-to-go
        tables; and the share of their entries that are the same in torch.

    Raises:
        RuntimeError: too many states differ by more than TOLERANCE and rounding, one is decided differently beyond
            them, or the tables are others.
    """
    policy, tolerance = Policy(path), TOLERANCE
    after_the_first = int((2 * problems.stages - 3).sum())
    beam = min(problems.points, max(BEAM, -(-states // after_the_first)))
    count, agreed, worst, equal, worse = 0, 0, 0.0, 0, 0.0
    entries: list[Tensor] = []
    for rows in np.array_split(np.arange(len(problems.stages)), -(-len(problems.stages) // CHUNK)):
        if agreed >= states:
            break
        some = problems.take(torch.from_numpy(rows))._replace(cost_to_go=None)
        planned = plan(policy, some, beam, tables=isinstance(module.online, LookAheadQNetwork))
        if planned.problems.cost_to_go is not None:
            entries.append(same_entries(planned.problems, module.online.prepare(some).cost_to_go))
        for state in visited(planned):
            expected = _expected(module, state)
            legal = expected > targets.ILLEGAL
            if not torch.equal(state.values.isfinite(), legal):
                raise RuntimeError("the exported policy calls other actions legal than the environment does")
            count += len(legal)
            scale = torch.where(legal, expected.abs(), 0.0).amax(1).clamp(min=1.0)
            apart = torch.where(legal, (state.values - expected).abs(), 0.0).amax(1) / scale
            tolerance = max(tolerance, ROUNDING * _rounding(module, state))
            agrees = apart <= tolerance
            agreed += int(agrees.sum())
            worst = max(worst, float(torch.where(agrees, apart, 0.0).max()))
            lost = (expected.amax(1) - expected.gather(1, state.action.unsqueeze(1)).squeeze(1)) / scale
            equal += int((lost <= FLOAT32_TOLERANCE).sum())
            worse = max(worse, float(lost.max()))
    report = {
        "states": agreed,
        "largest_difference": worst,
        "equal_states": agreed / count,
        "equal_actions": equal / count,
    }
    if any(map(len, entries)):
        report["equal_table_entries"] = float(torch.cat(entries).float().mean())
    same_tables = report.get("equal_table_entries", 1.0) >= EQUAL_ENTRIES
    if report["equal_states"] < EQUAL_STATES or worse > tolerance or not same_tables:
        raise RuntimeError(f"the exported policy differs from the trained one: {report}")
    return report


@torch.no_grad()
def _expected(module: RainbowModule, state: Visited) -> Tensor:
    legal = legal_actions(state.problems, state.partial, module.size.max_devices)
    q = targets.masked(module.agent.q(module.online, state.problems, state.partial), legal)
    points, width = state.problems.points, state.values.shape[1]  # the file leaves out devices that no cluster has
    return q[:, :points] if state.cuts else q[:, points : points + width]


@torch.no_grad()
def _rounding(module: RainbowModule, state: Visited) -> float:
    """How far values of a flat network are from those in float64 at most, as differences are counted.

    0 of other networks: theirs have stayed within the tolerance, and features would have to be made in float64, too.
    """
    network = module.online
    if not isinstance(network, FlatQNetwork):
        return 0.0
    flat, legal = network.describe(state.problems, state.partial)
    own = network((flat, legal)).double()
    exact = copy.deepcopy(network).double()((flat.double(), legal))
    scale = torch.where(legal, exact.abs(), 0.0).amax(1).clamp(min=1.0)
    return float((torch.where(legal, (own - exact).abs(), 0.0).amax(1) / scale).max())


class Planned(NamedTuple):
    """Problems with the file's tables, the `beam` best first cuts' plans of each, and what the file says on the way."""

    problems: Problems
    beam: int
    outputs: dict[str, Tensor]


def plan(policy: Policy, problems: Problems, beam: int, *, tables: bool) -> Planned:
    """Let the file plan."""
    feed = {name: tensor.numpy() for name, tensor in zip(PROBLEM, problems.tensors, strict=True)}
    names = (*PLANS, "first_values", "device_values", "cut_values", "last_device_values", *(TABLES if tables else ()))
    outputs = dict(zip(names, map(torch.from_numpy, policy.run(feed, beam, names)), strict=True))
    if tables:
        problems = problems._replace(cost_to_go=CostToGo(*(outputs[name] for name in TABLES)))
    return Planned(problems, beam, outputs)


def same_entries(problems: Problems, other: CostToGo | None) -> Tensor:
    """bool [entries] whether other tables hold the plans of the problems' own, for all stages they may have left."""
    ours = problems.cost_to_go
    if ours is None or other is None:
        raise ValueError("no tables")
    levels = min(ours.end.shape[1], other.end.shape[1])
    same = (ours.points == other.points).view(len(ours.points), 1, -1, 1)
    for a, b in zip(ours[1:3], other[1:3], strict=True):
        same = same & (a[:, :levels] == b[:, :levels])
    left = torch.arange(2, 2 + levels, device=same.device)
    return same[left < problems.stages.unsqueeze(1)].flatten()


def visited(planned: Planned) -> Iterator[Visited]:
    """Every state that the file comes through on its way from the `beam` best first cuts of each problem."""
    problems, beam, outputs = planned
    cuts, device_cuts, reward = (outputs[name] for name in PLANS)
    device_values = [*outputs["device_values"], outputs["last_device_values"]]
    batch = cuts.shape[0]
    many = problems.take(torch.arange(batch).repeat_interleave(beam))
    steps = 2 * (many.stages.long() - 1)
    complete = Partial(cuts.flatten(0, 1), device_cuts.flatten(0, 1), steps)
    start = complete.take(torch.arange(0, batch * beam, beam)).at_step(torch.zeros(batch, dtype=torch.int64))
    yield Visited(problems, start, True, outputs["first_values"], cuts[:, 0, 0])
    for t in range(1, int(steps.max())):
        rows = ((reward.flatten() > -torch.inf) & (steps > t)).nonzero().squeeze(1)
        partial = complete.take(rows).at_step(torch.full_like(rows, t))
        if t % 2:
            values, action = device_values[t // 2], complete.device_cuts[:, t // 2] - 1
        else:
            values, action = outputs["cut_values"][t // 2 - 1], complete.cuts[:, t // 2]
        yield Visited(many.take(rows), partial, t % 2 == 0, values[rows], action[rows])


OPSET = 18


BATCH_AXES = {
    **{name: {0: "batch"} for name in (*PROBLEM, *START, *STAGES, "points", *REST)},
    "first_devices": {0: "devices"},
    **{name: {0: "batch", 1: "levels"} for name in TABLES[1:]},
    **{name: {0: "rows"} for name in (*ROW_PROBLEM, "row_points", *PLAN, "final_row_cuts", "final_row_device_cuts")},
    **{name: {0: "rows", 1: "levels"} for name in ROW_TABLES[1:]},
}
"""The axes of the pieces' inputs that have no fixed length."""


def value_ranges(problems: Problems) -> dict[str, list[float]]:
    """[smallest, largest] of every scalar the policy was trained on, outwards to three digits.

    Random draws from a range never quite reach its ends, which are what people ask for: equal bandwidths are a 1.
    """
    scalars = {name: getattr(problems, name) for name in SCALARS}
    scalars["devices"] = problems.devices
    return {
        name: [_outwards(float(value.min()), math.floor), _outwards(float(value.max()), math.ceil)]
        for name, value in scalars.items()
    }


def _outwards(value: float, rounded: Callable[[float], int]) -> float:
    """A number > 0 to three digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{rounded(value / unit * (1 + (1e-9 if rounded is math.floor else -1e-9))) * unit:.12g}")


def planner_model(module: RainbowModule, problems: Problems) -> onnx.ModelProto:
    """The planner as one ONNX graph with dynamic axes; it says nothing about itself yet.

    Args:
        problems: some to trace with.
    """
    examples = example_tensors(module, problems)
    tables = isinstance(module.online, LookAheadQNetwork)
    convert = _export if tables else _traced
    model: onnx.ModelProto = planner_graph(
        Pieces(
            first_cut=convert(FirstCut(module), examples),
            stage=convert(Stage(module), examples),
            device_cut=convert(DeviceCut(module), examples),
            end=convert(End(module), examples),
            begin=_export(Begin(module), examples) if tables else None,
            level=_export(Level(module), examples) if tables else None,
        ),
        PROBLEM,
        TABLES if tables else (),
        module.size.max_stages,
    )
    strip(model.graph)
    return model


def write_model(model: onnx.ModelProto, metadata: dict[str, str], path: Path) -> None:
    """Write a model with what it says about itself, atomically.

    Raises:
        onnx.checker.ValidationError: it is no valid model.
    """
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)

    write_bytes(path, model.SerializeToString())


def _export(piece: Piece, examples: dict[str, Tensor]) -> onnx.ModelProto:
    for chatty in ("onnxscript", "onnx_ir", "torch.onnx"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    axes = {name: torch.export.Dim(name, min=1) for name in ("batch", "rows", "levels")}
    axes["devices"] = torch.export.Dim("devices", min=2)
    dynamic = tuple({axis: axes[name] for axis, name in BATCH_AXES.get(tensor, {}).items()} for tensor in piece.inputs)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        # Exported here: torch.onnx would fall back to fixed axes without a word where this one fails.
        program = torch.export.export(
            piece.eval(), tuple(examples[name] for name in piece.inputs), dynamic_shapes=(dynamic,)
        )
        converted = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(piece.inputs),
            output_names=list(piece.outputs),
            verbose=False,
        )
    return converted.model_proto  # type: ignore[union-attr]


def _traced(piece: Piece, examples: dict[str, Tensor]) -> onnx.ModelProto:
    """The same from one run of the piece, by the older exporter.

    For the thousand small operators of one_step's features torch.export was not through after ten minutes; this takes
    seconds, and one second instead of twenty for the paper's network. It turns a `squeeze` of an axis of unknown length
    into a branch, which planner_graph cannot put together: pieces take `select` instead. What it fixes by mistake the
    comparison with torch finds, at other batch sizes.
    """
    buffer: Any = io.BytesIO()  # which the signature does not name, but the older exporter takes
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            piece.eval(),
            tuple(examples[name] for name in piece.inputs),
            buffer,
            dynamo=False,
            opset_version=OPSET,
            input_names=list(piece.inputs),
            output_names=list(piece.outputs),
            dynamic_axes={name: dict(BATCH_AXES[name]) for name in piece.inputs if name in BATCH_AXES},
        )
    model = onnx.load_from_string(buffer.getvalue())
    optimised: onnx.ModelProto = onnxscript.optimizer.optimize(model, onnx_shape_inference=False)
    return optimised


def policy_metadata(module: RainbowModule, problems: Problems, config: Any) -> dict[str, str]:
    """What a policy file says about itself: what made it and which problems it is for."""
    canonical = json.dumps(config, sort_keys=True, default=str)
    ranges = value_ranges(problems)
    if module.exact_decisions:  # problems with so few stages need not be trained on: the look-ahead decides
        ranges["stages"][0] = min(ranges["stages"][0], 1 + module.exact_decisions // 2)
    return {
        "automap_kind": "pipeline-planner",
        "opset": str(OPSET),
        "automap_version": __version__,
        "config_sha256": hashlib.sha256(canonical.encode()).hexdigest(),
        "config": canonical,
        "ranges": json.dumps(ranges),
        "points": str(module.size.points),
        "max_stages": str(module.size.max_stages),
        "max_devices": str(module.size.max_devices),
        "episodes": str(module.episodes),
        "objective": module.size.objective,
    }


def export_policy(
    module: RainbowModule, data: PipelineData, path: Path, config: Any, states: int = STATES
) -> dict[str, float]:
    """Write an ONNX policy with its metadata; it is kept only if it agrees with torch.

    Args:
        config: the training config; its hash goes into the metadata.
        states: how many states are compared at least.

    Returns:
        The parity report.
    """
    module.eval().cpu()
    metadata = policy_metadata(module, data.problems, config)
    candidate = path.with_suffix(".unchecked.onnx")
    try:
        write_model(planner_model(module, data.problems), metadata, candidate)
        report: dict[str, float] = check_parity(module, candidate, data.problems, states)
        candidate.replace(path)
    finally:
        candidate.unlink(missing_ok=True)
    return report
