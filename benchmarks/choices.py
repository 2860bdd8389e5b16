"""Which plan others' cost models would have chosen among those that were measured, and which one ours.

    OMP_NUM_THREADS=1 python benchmarks/choices.py ROWS CLONES

ROWS is a folder of measured steps (docs/reference/files.md), CLONES one of clones of the peers: calculon
(calculon-ai), SimuMax (MooreThreads) and llm-analysis (cli99). Each peer runs in a process of its own, with the
constants of devices that it ships; llm-analysis needs the package fire, SimuMax pandas, sympy and tqdm. An adapter
turns a row into the input of the peer, or says why it cannot. A plan that a peer takes for too large is its last.

A group is of four or more plans of one model, cluster and batch, the slowest of which took more than 1.3 times as long
as the fastest. Regret is how much longer than the fastest plan the chosen one took; of plans that a chooser takes for
equal, the mean. Beside each chooser stand ours on the rows that the chooser can express.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import math
import multiprocessing
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from accuracy import cell_of, is_fitted
from common import print_rows, refuse
from measured_steps import LEAST_PLANS, Price, groups_of, percent, price_files
from scipy.stats import kendalltau

from automap_models.cost.measured_step import MeasuredStep
from automap_models.errors import BadInput

LEAST_SPREAD = 1.3
NODE = 8  # devices that Calculon's files take for a node
LARGE = 128  # devices of a group that counts as large
TOO_LARGE = math.inf  # seconds of a plan that a chooser takes for too large to fit
Seconds = Mapping[str, float]
"""Name of a step → how a chooser scores it, the least first; steps that it cannot express are missing."""
Row = Sequence[str]
Group = tuple[str, Sequence[MeasuredStep]]


class Unsaid(ValueError):
    """A peer has no words for a row; the message says for what."""


def dense(step: MeasuredStep, devices: Mapping[str, str]) -> str:
    """The peer's file of the step's device, of a dense transformer in 16 bits that all peers have words for.

    Raises:
        Unsaid: a device that the peer ships no file of, or a model or a strategy beyond that.
    """
    model, strategy = step.model, step.strategy
    if step.device not in devices:
        raise Unsaid(f"no file of {step.device} is shipped")
    for reason, is_so in (
        ("mixture of experts", model.mixture is not None),
        ("recurrence, latent or windowed attention", bool(model.recurrence or model.latent or model.window)),
        ("weights in other than 16 bits", strategy.precision not in ("fp16", "bf16")),
        ("context parallelism", strategy.cp > 1),
        ("ZeRO within groups of ranks", strategy.dp_replicate > 1),
        ("schedule other than 1F1B", strategy.schedule not in ("1f1b", "interleaved")),
        ("recomputation that differs by block", strategy.recompute_blocks is not None),
        ("recomputation that differs by stage", isinstance(strategy.recompute, tuple)),
        ("state in the host's memory", strategy.offload != "none"),
    ):
        if is_so:
            raise Unsaid(reason)
    return devices[step.device]


def calculon_s(clone: Path) -> Callable[[MeasuredStep], float]:
    """Calculon's seconds of a step.

    A gated perceptron is one of two matrices that are half as wide again. Keys and values have as many heads as
    queries. Gradients go beside the backward pass.
    """
    package, llm = importlib.import_module("calculon"), importlib.import_module("calculon.llm")
    log = importlib.import_module("logging").getLogger("calculon")
    files = {"a100": "a100_80g", "h100": "h100_80g_nvl8"}

    def seconds(step: MeasuredStep) -> float:
        system = package.io.read_json_file(str(clone / "systems" / f"{dense(step, files)}.json"))
        if step.strategy.zero > 1:
            raise Unsaid("ZeRO-2 and 3")
        model = llm.Llm(llm.Llm.Application(calculon_model(step)), log)
        machine = package.System(system)
        try:
            model.compile(machine, llm.Llm.Execution.from_json(calculon_execution(step)))
            model.run(machine)
        except llm.Llm.Error as error:
            if "Mem tier" in str(error):
                return TOO_LARGE
            raise Unsaid(str(error).partition(" needs ")[0]) from error
        return float(model.get_total_time())

    return seconds


def calculon_model(step: MeasuredStep) -> dict[str, object]:
    """The model as Calculon's files describe one."""
    shape = step.model.shape
    is_gated = step.model.family == "llama" and step.model.gated
    return {
        "hidden": shape.hidden,
        "feedforward": shape.ffn * 3 // 2 if is_gated else shape.ffn,
        "seq_size": shape.sequence,
        "attn_heads": shape.heads,
        "attn_size": step.model.head_width or shape.hidden // shape.heads,
        "num_blocks": shape.layers,
    }


def calculon_execution(step: MeasuredStep) -> dict[str, object]:
    """The strategy as Calculon's files describe one, its ranks placed as Megatron does: tp, then dp, then pp."""
    strategy = step.strategy
    recompute = {"none": "none", "selective": "attn_only", "full": "full"}[str(strategy.recompute)]
    shares_tokens = strategy.sequence_parallel and strategy.tp > 1
    return {
        "num_procs": strategy.devices,
        "tensor_par": strategy.tp,
        "pipeline_par": strategy.pp,
        "data_par": strategy.dp,
        "tensor_par_net": int(strategy.tp > NODE),
        "data_par_net": int(strategy.tp * strategy.dp > NODE),
        "pipeline_par_net": int(strategy.devices > NODE),
        "batch_size": strategy.global_batch,
        "microbatch_size": strategy.micro_batch,
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": recompute,
        "pipeline_interleaving": strategy.vp,
        "optimizer_sharding": strategy.zero > 0 and strategy.dp > 1,
        "tensor_par_comm_type": "rs_ag" if shares_tokens else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": shares_tokens and recompute != "full",
        "data_par_overlap": strategy.dp > 1,
        "training": True,
        **dict.fromkeys(("weight_offload", "activations_offload", "optimizer_offload"), False),
    }


def simumax_s(clone: Path) -> Callable[[MeasuredStep], float]:
    """SimuMax's seconds of a step; its A100 is that of a PCIe card."""
    config, core = (importlib.import_module(f"simumax.core.{name}") for name in ("config", "perf_llm"))
    files = {"a100": "a100_pcie", "b200": "b200_bf16_ceperm"}

    def seconds(step: MeasuredStep) -> float:
        system = clone / "configs" / "system" / f"{dense(step, files)}.json"
        if step.strategy.zero > 1:
            raise Unsaid("ZeRO-2 and 3")
        performance = core.PerfLLM()
        performance.configure(
            strategy_config=config.StrategyConfig.init_from_dict(simumax_strategy(step)),
            model_config=config.ModelConfig.init_from_dict(simumax_model(step)),
            system_config=config.SystemConfig.init_from_config_file(str(system)),
        )
        performance.run_estimate()
        number, unit = performance.analysis_cost().data["duration_time_per_iter"].split()
        return float(number) * {"s": 1.0, "ms": 1e-3}[unit]

    return seconds


def simumax_model(step: MeasuredStep) -> dict[str, object]:
    """The model as SimuMax's files describe one."""
    shape = step.model.shape
    return {
        "model_type": "dense",
        "hidden_size": shape.hidden,
        "head_num": shape.heads,
        "kv_head_num": shape.kv_heads,
        "head_size": step.model.head_width or shape.hidden // shape.heads,
        "intermediate_size": shape.ffn,
        "layer_num": shape.layers,
        "vocab_size": shape.vocabulary,
        "use_swiglu": step.model.family == "llama" and step.model.gated,
    }


def simumax_strategy(step: MeasuredStep) -> dict[str, object]:
    """The strategy as SimuMax's files describe one."""
    strategy = step.strategy
    granularity = {"selective": "sdp_only", "full": "full_block"}.get(str(strategy.recompute))
    return {
        "seq_len": step.model.shape.sequence,
        "micro_batch_size": strategy.micro_batch,
        "micro_batch_num": strategy.micro_batches,
        "world_size": strategy.devices,
        "tp_size": strategy.tp,
        "pp_size": strategy.pp,
        "interleaving_size": strategy.vp,
        "enable_sequence_parallel": strategy.sequence_parallel and strategy.tp > 1,
        "zero_state": strategy.zero,
        "enable_recompute": granularity is not None,
        "recompute_granularity": granularity,
        "recompute_layer_num": step.model.shape.layers if granularity else 0,
    }


def llm_analysis_s(clone: Path) -> Callable[[MeasuredStep], float]:
    """The seconds of llm-analysis, at the efficiencies of 1 that it has by default."""
    analysis, config = (importlib.import_module(f"llm_analysis.{name}") for name in ("analysis", "config"))
    sizes = {"a100": ("a100", 80), "a100-40": ("a100", 40), "h100": ("h100", 80), "v100": ("v100", 16)}
    files = {device: f"{chip}-sxm-{size}gb" for device, (chip, size) in sizes.items()}

    def seconds(step: MeasuredStep) -> float:
        gpu, shape, strategy = dense(step, files), step.model.shape, step.strategy
        model = config.ModelConfig(
            "row",
            *(shape.layers, shape.heads, shape.hidden, shape.vocabulary),
            max_seq_len=shape.sequence,
            num_key_value_heads=shape.kv_heads,
            ffn_embed_dim=shape.ffn,
            mlp_gated_linear_units=step.model.family == "llama" and step.model.gated,
        )
        sharing = strategy.tp if strategy.sequence_parallel else 1
        parallelism = config.ParallelismConfig(strategy.tp, strategy.pp, strategy.dp, sp_size=sharing)
        kinds = {"none": "NONE", "selective": "ATTN_COMPUTE", "full": "FULL"}
        peer = analysis.LLMAnalysis(model, config.get_gpu_config_by_name(gpu), parallelism_config=parallelism)
        try:
            summary = peer.training(
                *(strategy.micro_batch, strategy.micro_batches, strategy.global_batch, shape.sequence),
                activation_recomputation=analysis.ActivationRecomputation[kinds[str(strategy.recompute)]],
                ds_zero=analysis.DSZeRO(strategy.zero),
            )
        except AssertionError as error:
            raise Unsaid("perceptron that its own check of operations refuses") from error
        return float(summary["latency_per_iter"])

    return seconds


class Peer(NamedTuple):
    """Another cost model: its name, which its clone's folder has, too, the commit that is known, and its adapter."""

    name: str
    commit: str
    adapter: Callable[[Path], Callable[[MeasuredStep], float]]


PEERS = (
    Peer("calculon", "caa4b11", calculon_s),
    Peer("SimuMax", "4dcaae5", simumax_s),
    Peer("llm-analysis", "d841e40", llm_analysis_s),
)


def answers(peer: Peer, clone: Path, steps: Sequence[MeasuredStep]) -> list[float | str]:
    """What a peer says of each step; to be called in a process of its own."""
    sys.path.insert(0, str(clone))
    importlib.import_module("logging").disable()
    with contextlib.redirect_stdout(io.StringIO()):
        seconds = peer.adapter(clone)
        return [answer(seconds, step) for step in steps]


def answer(seconds: Callable[[MeasuredStep], float], step: MeasuredStep) -> float | str:
    """Seconds of a step, or why there are none; a peer's own refusals are of many kinds."""
    try:
        return seconds(step)
    except Unsaid as error:
        return str(error)
    except Exception as error:  # of code that is not automap's
        return f"{type(error).__name__} of its own"


def require_clone(peer: Peer, clone: Path) -> None:
    """Refuse a folder that is no clone, and warn of another commit."""
    command = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    commit = subprocess.run(command, check=False, capture_output=True, text=True).stdout if clone.is_dir() else ""
    if not commit:
        raise BadInput("this is no clone of it", where=f"`{clone}`", do=f"clone {peer.name} there")
    if not commit.startswith(peer.commit):
        print(f"{clone} is at {commit[:7]}: the adapter was written for {peer.commit}", file=sys.stderr)


def peer_seconds(peer: Peer, clones: Path, steps: Sequence[MeasuredStep]) -> tuple[Seconds, Counter[str]]:
    """What a peer says of the steps that it can express, and how often it cannot for which reason."""
    clone = clones / peer.name
    require_clone(peer, clone)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        try:
            replies = process.submit(answers, peer, clone, steps).result()
        except ImportError as error:
            raise BadInput(str(error), where=f"`{clone}`", do="install what the peer needs") from error
    pairs = list(zip(steps, replies, strict=True))
    seconds = {step.name: value for step, value in pairs if isinstance(value, float)}
    return seconds, Counter(value for _, value in pairs if isinstance(value, str))


class Chooser(NamedTuple):
    """Who chooses a plan: a name, scores of steps, and whether these are seconds."""

    name: str
    scores: Seconds
    in_seconds: bool = True


class Choice(NamedTuple):
    """What a chooser made of a group: Kendall's τ of its scores and the measured seconds, and the regret."""

    tau: float
    regret: float


def choice(scores: Sequence[float], measured: Sequence[float]) -> Choice:
    """Of a group's plans."""
    best = min(scores)
    taken = float(np.mean([step_s for score, step_s in zip(scores, measured, strict=True) if score == best]))
    return Choice(float(kendalltau(scores, measured).statistic), taken / min(measured) - 1)


def narrowed(groups: Iterable[Group], scores: Seconds) -> Iterator[Group]:
    """Groups of the steps that have a score, which are still to choose from."""
    for name, steps in groups:
        some = [step for step in steps if step.name in scores]
        if len(some) >= LEAST_PLANS and spread(some) > LEAST_SPREAD:
            yield name, some


def seconds_of(steps: Iterable[MeasuredStep]) -> list[float]:
    """The measured ones."""
    return [step.step_s for step in steps if step.step_s is not None]


def spread(steps: Sequence[MeasuredStep]) -> float:
    """The slowest over the fastest."""
    return max(seconds_of(steps)) / min(seconds_of(steps))


def choices(groups: Iterable[Group], scores: Seconds) -> list[Choice]:
    """Of groups whose steps all have a score."""
    return [choice([scores[step.name] for step in steps], seconds_of(steps)) for _, steps in groups]


def median_error(ratios: Sequence[float]) -> str:
    """|predicted / measured - 1| in the median; empty where there are none."""
    return percent(float(np.median(np.abs(np.array(ratios) - 1)))) if ratios else ""


def floors(steps: Sequence[MeasuredStep]) -> Iterator[Chooser]:
    """Choosers without a clock."""
    tensor = {step.name: 1e6 * step.strategy.tp + step.strategy.pp for step in steps}
    yield Chooser("least tp, then least pp", tensor, in_seconds=False)
    yield Chooser("any plan (the mean)", dict.fromkeys(tensor, 0.0), in_seconds=False)


HEADINGS = ("chooser", "rows", "groups", "τ", "regret", "worst", "error", "ours: τ", "regret", "worst", "error")
"""Of the tables by chooser: rows are those that it can express, of all that have seconds, errors those of its
seconds in the median, without plans that it takes for too large."""


def by_chooser(choosers: Iterable[Chooser], ours: Chooser, groups: Sequence[Group], measured: Seconds) -> Iterator[Row]:
    """Figures of each chooser on some groups, and ours on the same rows."""
    for chooser in choosers:
        scores, some = chooser.scores, list(narrowed(groups, chooser.scores))
        timed = [name for name, score in scores.items() if math.isfinite(score)] if chooser.in_seconds else []
        errors = [median_error([values[name] / measured[name] for name in timed]) for values in (scores, ours.scores)]
        share = percent(len(scores) / len(measured))
        figures = [figures_of(choices(some, values)) for values in (scores, ours.scores)]
        yield (chooser.name, share, str(len(some)), *figures[0], errors[0], *figures[1], errors[1])


def figures_of(picks: Sequence[Choice]) -> Row:
    """Kendall's τ and the regret in the mean, and the largest regret."""
    if not picks:
        return ("", "", "")
    taus = [one.tau for one in picks if not math.isnan(one.tau)]
    regrets = [one.regret for one in picks]
    return (f"{np.mean(taus):.2f}" if taus else "", percent(float(np.mean(regrets))), percent(max(regrets)))


def by_group(choosers: Sequence[Chooser], groups: Iterable[Group]) -> Iterator[Row]:
    """The regret of each chooser on the rows of each group that it can express; empty where they are too few."""
    for name, steps in groups:
        cells = (
            figures_of(choices(narrowed([(name, steps)], chooser.scores), chooser.scores))[1] for chooser in choosers
        )
        yield (name, str(len(steps)), f"{spread(steps):.2f}", *cells)


def timed(prices: Iterable[Price]) -> dict[str, tuple[MeasuredStep, float]]:
    """Name of a step that has measured seconds → the step, and our seconds."""
    return {
        price.step.name: (price.step, price.estimate.step_s)
        for price in prices
        if isinstance(price.step, MeasuredStep) and price.estimate is not None and price.step.step_s is not None
    }


def run(rows: Path, clones: Path) -> None:
    """Print the tables."""
    prices = price_files([rows])
    rows_of = timed(prices)
    steps = [step for step, _ in rows_of.values()]
    ours = Chooser("automap", {name: step_s for name, (_, step_s) in rows_of.items()})
    replies = {peer.name: peer_seconds(peer, clones, steps) for peer in PEERS}
    choosers = [ours, *(Chooser(name, scores) for name, (scores, _) in replies.items()), *floors(steps)]
    groups = [(name, [rows_of[price.step.name][0] for price in of_group]) for name, of_group in groups_of(prices)]
    report(choosers, list(narrowed(groups, ours.scores)), prices, steps)
    print_rows(("peer", "why it has no seconds", "rows"), reasons(replies))


def reasons(replies: Mapping[str, tuple[Seconds, Counter[str]]]) -> Iterator[Row]:
    """What each peer has no words for, and how many rows that are; and how many it takes for too large."""
    for name, (scores, counts) in replies.items():
        too_large = sum(score == TOO_LARGE for score in scores.values())
        for reason, count in [*counts.most_common(), ("(takes the plan for too large)", too_large)]:
            yield (name, reason, str(count))


def report(
    choosers: Sequence[Chooser], groups: Sequence[Group], prices: Sequence[Price], steps: Sequence[MeasuredStep]
) -> None:
    """Print the tables by chooser, of all groups and of some, and that by group."""
    measured = dict(zip([step.name for step in steps], seconds_of(steps), strict=True))
    fitted = {price.step.source for price in prices if (cell := cell_of(price)) is not None and is_fitted(cell)}
    for title, some in (
        ("all groups", groups),
        (f"{LARGE} devices or more", [group for group in groups if group[1][0].cluster.devices >= LARGE]),
        ("sources that no number of ours is fitted to", [g for g in groups if g[1][0].source not in fitted]),
    ):
        print(f"\n{title}:\n")
        print_rows(HEADINGS, by_chooser(choosers, choosers[0], some, measured))
    print()
    print_rows(("group", "plans", "spread", *(chooser.name for chooser in choosers)), by_group(choosers, groups))
    print()


def main() -> None:
    """Run every peer on every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="a file of measured steps, or a folder of them")
    parser.add_argument("clones", type=Path, help="a folder of clones: calculon, SimuMax, llm-analysis")
    arguments = parser.parse_args()
    try:
        run(arguments.rows, arguments.clones)
    except BadInput as error:
        refuse(str(error))


if __name__ == "__main__":
    main()
