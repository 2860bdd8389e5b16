"""Sailor's artefact (SOSP '25): its traces, planners and simulator, and pipelines as that reads them."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from automap_models.core.cluster import Cluster, NodeGroup, ZoneLink

COMMIT = "cf2c8e3cc53ce178fe58a4003f46b4b6b848fc33"
MODELS = {"OPT-350": "training_config_opt_350.json", "GPT-Neo-2.7": "training_config_gpt_neo27.json"}
ZONE = "us-central1-a"
TRACES = {
    "homogeneous": "gpu_trace_scaled",
    "mixed": "gpu_trace_heterogeneous_imbalanced",
    "zones": "gpu_trace_multizone",
    "cost": "gpu_trace_2zones_2gpus",
    "budget": "gpu_trace_2zones_2gpus",
}
PROFILES = {
    "SAILOR": None,
    "AMP": "baselines/AMP/profiles/{model}",
    "Aceso": "baselines/Aceso/profiler/A100-40",
    "Atlas": "simulations/profiles_tmp.json",
    "DTFM": "simulations/profiles_tmp.json",
    "FlashFlex": "baselines/FlashFlex/src/machine_amounts.json",
    "Galvatron": "baselines/Galvatron/profiles/{model}/A100-40",
    "Metis": "baselines/Metis/profiles/{model}",
    "Piper": "baselines/Piper/profiles/{model}/A100-40/profile.json",
    "Varuna": "baselines/Varuna/profiles/{model}/A100-40/profile_4.json",
}
"""Planner → where its profile lies under sailor/Planner."""
PLANNERS = {
    "homogeneous": tuple(PROFILES),
    "mixed": ("SAILOR", "AMP", "FlashFlex", "Metis"),
    "zones": ("SAILOR", "DTFM"),
    "cost": (least_cost := ("SAILOR", "AMP", "DTFM", "FlashFlex", "Galvatron", "Metis")),
    "budget": least_cost,
}
"""Clusters → the planners that their evaluation of them has."""


class Goal(NamedTuple):
    """What a trace asks for: the most steps a second, of at most so many dollars each where that is given; or the least
    dollars a step, of at least so many a second."""

    cheapest: bool = False
    limit: float = 0.0

    def missed(self, rate: float, dollars: float) -> bool:
        """Whether a plan of so many steps a second, of so many dollars each, is beyond the limit."""
        return bool(self.limit) and (rate < self.limit if self.cheapest else dollars > self.limit)

    def merit(self, rate: float, dollars: float) -> float:
        """The more the better, 0 where there is no plan."""
        return 1.0 / dollars if self.cheapest and rate else rate

    @property
    def words(self) -> str:
        """What is more where a plan is better."""
        if self.cheapest:
            return f"steps a dollar, at {self.limit:g} steps a second or more"
        return "steps a second" + (f", at {self.limit:g} $ a step or less" if self.limit else "")


GOALS = {"cost": Goal(cheapest=True, limit=0.2), "budget": Goal(limit=1.2)}
"""Clusters → the goal that their evaluation of them has, if that is not just the most steps a second."""


def goal_of(trace: str) -> Goal:
    """What a trace asks for."""
    return GOALS.get(trace, Goal())


DOLLARS = {"A100-40": 3.673385, "V100-16": 2.859998}
"""An hour of a device, in their zones."""
MEMORY_GIB = {"A100-40": 40, "V100-16": 16}
KINDS = {"A100-40": "a100-40", "V100-16": "v100"}
"""Kind of device → its name here."""
JUDGE = """
import contextlib, io, json, sys
from sailor.Planner.simulations.runtime_simulator import Simulator, convert_homogeneous
from sailor.Planner.simulations.simulator import simulate_plan
root, model, zone, plans = json.load(sys.stdin)
base = root + "/sailor/sailor/Planner"
read = lambda path: json.load(open(base + path))
said = io.StringIO()
with contextlib.redirect_stdout(said):
    simulator = Simulator(root, read("/simulations/configs/" + model), read("/llm_info.json"), False,
                          read("/simulations/profiles_tmp.json"), zone)
    answers = []
    for plan in plans:
        rate, _, computing, sending, *_ = simulate_plan(simulator, plan, zone)
        reduced_s = simulator.estimate_sync_time(convert_homogeneous(plan, simulator.training_config))
        answers.append((bool(simulator.check_config_fits(plan)), rate, computing + sending, reduced_s))
json.dump(answers, sys.stdout)
"""
"""Whether plans fit by their simulator, their steps a second, dollars a step, and seconds of a step in all-reduces."""
MACHINE = 4
"""Devices of one of their machines."""


@dataclass(frozen=True)
class Answer:
    """A planner's plan for one cluster.

    Attributes:
        planner: who made it.
        plan: in words.
        throughput: steps a second by their simulator; 0 where no plan fits.
        dollars: of a step, what leaves zones included.
        search_s: to plan: of ours of a core, of theirs by the wall.
        refused: plans before it, in the planner's order, that do not fit.
        reduced_s: that all-reduces take of a step; of theirs nobody says.
        here: steps a second by automap's clock, of as many samples as are asked for; nan where a strategy cannot say
            the plan, where that takes part of a machine, or the cluster is not of one kind in one zone.
    """

    planner: str
    plan: str
    throughput: float
    dollars: float
    search_s: float
    refused: int
    reduced_s: float = math.nan
    here: float = math.nan


class Replicas(NamedTuple):
    """Equal replicas of a stage: the kind of device and its zone, devices that share one, and how many there are."""

    kind: str
    tp: int
    copies: int


@dataclass(frozen=True)
class Pipeline:
    """Samples of a micro-batch, and the layers and the devices of each stage."""

    micro_batch: int
    stages: tuple[tuple[range, tuple[Replicas, ...]], ...]

    def dictionary(self) -> dict[str, Any]:
        """As Sailor's simulator reads it, where kinds are A100-40_us-central1-a and the like."""
        teams: list[list[tuple[list[tuple[str, int, str]], int]]] = []
        used: dict[str, int] = {}
        for _, team in self.stages:
            teams.append([])
            for name, tp, copies in team:
                kind, zone = name.split("_")
                teams[-1] += [([(kind, tp, zone)], tp)] * copies
                used[kind] = used.get(kind, 0) + tp * copies
        layers = [list(stage) for stage, _ in self.stages]
        counts = {"num_stages": len(layers), "layers_per_stage": layers, "dp": [len(team) for team in teams]}
        pipeline = {**counts, "tmp_per_stage": teams}
        return {"pipeline_list": [pipeline], "mbs": self.micro_batch, "used_gpus": used}

    def described(self) -> dict[str, Any]:
        """As Sailor's simulator writes it."""
        (pipeline,) = self.dictionary()["pipeline_list"]
        return {"mbs": self.micro_batch, "pipelines": [{**pipeline, "tmp_stages": pipeline["tmp_per_stage"]}]}


class Sailor:
    """A copy of the clone that is built, with the interpreter that runs it."""

    def __init__(self, clone: Path, python: Path, answers: Path, limit_s: float) -> None:
        self.root, self.python, self.answers, self.limit_s = answers.resolve() / "copy", python, answers, limit_s
        self.planner = self.root / "sailor/sailor/Planner"
        if not self.planner.exists():
            shutil.copytree(clone / "sailor", self.root / "sailor/sailor")
            self.build()

    @cached_property
    def environment(self) -> dict[str, str]:
        """In which their programs run: their fixed paths are relative to a home folder."""
        code = "import pybind11, sysconfig; print(pybind11.get_include(), sysconfig.get_path('include'), sep=':')"
        headers = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        home, machine = str(self.root), platform.machine()
        changed = {"HOME": home, "SAILOR_PATH": home, "PYTHONPATH": f"{home}/sailor", "OMP_NUM_THREADS": "1"}
        changed |= {"MAKEFLAGS": f"ARCH={machine}", "PATH": f"{self.python.parent}:{os.environ['PATH']}"}
        return {**os.environ, **changed, "CPATH": f"{headers}:{os.environ.get('CPATH', '')}"}

    def build(self) -> None:
        """What their installation builds beside the planners, and their files of operators where a clone has none."""
        library = f"galvatron_dp_core.cpython-310-{platform.machine()}-linux-gnu.so"
        command = ["g++", "-O3", "-shared", "-std=c++17", "-fPIC", "dp_core.cpp", "-o", library]
        self._run(command, self.planner / "baselines/Galvatron/csrc")
        if not (self.planner / "llm_info_aceso.json").exists():
            self._run(["bash", "run_all.sh"], self.planner / "baselines/Aceso/csv2json")

    def _run(
        self, command: Sequence[str | Path], folder: Path, question: str | None = None, limit_s: float | None = None
    ) -> str:
        done = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=folder,
            input=question,
            timeout=limit_s,
        )
        return done.stdout

    def read(self, path: str) -> Any:
        """A JSON file of theirs, by its place under sailor/Planner."""
        return json.loads((self.planner / path).read_text())

    def rows(self, trace: str) -> tuple[str, list[str]]:
        """The heading of a trace and its rows."""
        heading, *rows = (self.planner / f"simulations/configs/{TRACES[trace]}.csv").read_text().split()
        return heading, rows

    def clusters(self, trace: str) -> list[dict[str, int]]:
        """Devices by kind and zone (A100-40_us-central1-a) of each row of a trace."""
        heading, rows = self.rows(trace)
        return [dict(zip(heading.split(",")[2:], map(int, row.split(",")[2:]), strict=True)) for row in rows]

    def theirs(self, planner: str, model: str, trace: str, number: int, steps_per_s: Callable[[Any], float]) -> Answer:
        """One of their planners on a row of a trace; in place of a plan the reason why there is none.

        Args:
            steps_per_s: of a plan by automap's clock.
        """
        goal = f"-{trace}" if trace in GOALS else ""
        folder = self.answers.resolve() / f"{TRACES[trace]}-{number}{goal}"
        path = folder / f"{planner}_{model}.json"
        if not path.exists():
            heading, rows = self.rows(trace)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "trace.csv").write_text(f"{heading}\n{rows[number]}\n")
            try:
                self._run(self.command(planner, model, folder, goal_of(trace)), self.root, limit_s=self.limit_s)
            except subprocess.TimeoutExpired:
                return Answer(planner, f"no answer in {self.limit_s:.0f} s", 0.0, math.nan, math.nan, 0)
            except subprocess.CalledProcessError as error:
                return Answer(planner, error.stderr.strip().rpartition("\n")[2][:80], 0.0, math.nan, math.nan, 0)
        (row,) = json.loads(path.read_text())
        plan = words(row["plan"]) if row["throughput"] else "none fits"
        here = steps_per_s(row["plan"]) if row["throughput"] else math.nan
        rate, dollars = row["throughput"], row["cost_per_iteration"]
        return Answer(planner, plan, rate, dollars, row["search_time"], row["oom_plans"], here=here)

    def command(self, planner: str, model: str, folder: Path, goal: Goal) -> list[str | Path]:
        """That runs one of their planners on the trace in a folder, as their ae_scripts/planner/run_all_sim.py does."""
        base, sizes = self.planner, "_aceso" if planner == "Aceso" else ""
        profile = PROFILES[planner]
        options = {
            "sailor_path": self.root,
            "trace_file": folder / "trace.csv",
            "basic_cluster_config_json": base / "simulations/configs/basic_cluster_config.json",
            "training_config_json": base / f"simulations/configs/{MODELS[model]}",
            "result_dir_path": folder,
            "objective": "iteration_cost" if goal.cheapest else "throughput",
            "min_throughput" if goal.cheapest else "max_cost": goal.limit,
            "planner": planner,
            "sailor_profile_file_dir": f"{base}/sailor_planner/profiles/{model}/",
            "quotas_dict": base / "sailor_planner/dummy_quotas_dict.json",
            "simulator_profile_file": base / f"simulations/profiles_tmp{sizes}.json",
        }
        if profile is not None:
            options["planner_profile_file"] = base / profile.format(model=model)
        pairs = ((f"--{name}", str(value)) for name, value in options.items())
        return [self.python, base / "simulations/simulator.py", *(word for pair in pairs for word in pair)]

    @cached_property
    def bandwidths(self) -> Any:
        """[zone][kind][devices][zone][kind][devices] → coefficients of the bandwidth, and the most in bytes/s."""
        return self.read("../providers/multizone_bandwidths_het.json")

    def link(self, sender: str, receiver: str, count: int, sent_bytes: float | None = None) -> float:
        """Bytes a second between so many devices of a machine each, by their kinds in zones; None is of any size."""
        (kind, zone), (other, place) = sender.split("_"), receiver.split("_")
        coefficients, most = self.bandwidths[zone][kind][str(count)][place][other][str(count)]
        return float(most if sent_bytes is None else 1e9 * np.polyval(coefficients, np.log2(sent_bytes / 1e6)))

    def cluster(
        self, devices: Mapping[str, int], sharing: int = 1, sent_bytes: float | None = None, **speeds: float
    ) -> Cluster:
        """Of their machines; their simulator has no latency between zones.

        Args:
            devices: by kind and zone.
            sharing: devices of a machine that stand for one; the others of it are then far from them.
            sent_bytes: that bandwidths are of; None is the most of whole machines.
            speeds: of what stands for one of each kind, over an A100.
        """
        used = MACHINE if sent_bytes is None else sharing
        groups = []
        for name, count in devices.items():
            kind, zone = name.split("_")
            intra, inter = 300e9, self.link(name, name, used, sent_bytes)
            device = KINDS[kind]
            memory, speed = sharing * MEMORY_GIB[kind] * 2.0**30, speeds.get(device)
            groups.append(
                NodeGroup(count // used, used // sharing, intra, inter, memory, device, speed=speed, zone=zone)
            )
        named = {name.split("_")[1]: name for name in devices}
        pairs = combinations(named, 2)
        links = [ZoneLink((a, b), self.link(named[a], named[b], used, sent_bytes)) for a, b in pairs]
        return Cluster.of_groups(groups, zone_links=links)

    def judged(self, model: str, plans: Sequence[Pipeline]) -> list[tuple[bool, float, float, float]]:
        """What JUDGE says of plans."""
        dictionaries = [plan.dictionary() for plan in plans]
        question = json.dumps([str(self.root), MODELS[model], ZONE, dictionaries])
        answers = self._run([self.python, "-c", JUDGE], self.planner / "simulations", question)
        return [tuple(answer) for answer in json.loads(answers)]


def words(plan: Mapping[str, Any]) -> str:
    """A plan of theirs: micro-batch, and the stages of each pipeline with layers, replicas and tensor parallelism; of
    Aceso, whose stages are of parts of layers with degrees of their own, how many there are and which these are."""
    if (one := plan.get("pipeline")) is not None:
        stages_of = zip(one["dp_degrees"], one["tp_degrees"], strict=True)
        pairs = sorted({pair for degrees in stages_of for pair in zip(*degrees, strict=True)})
        return f"mbs {plan['mbs']}: {one['num_stages']} stages, {', '.join(f'{dp} × tp {tp}' for dp, tp in pairs)}"
    first, *others = plan["pipelines"]
    stages = []
    for layers, replicas in zip(first["layers_per_stage"], first["tmp_stages"], strict=True):
        kinds = sorted({f"{vms[0][0]} tp {tp}" for vms, tp in replicas})
        stages.append((f"{len(replicas)} × {' + '.join(kinds)}", len(layers)))
    parts = [(kind, [count for name, count in stages if name == kind]) for kind in dict.fromkeys(s for s, _ in stages)]
    text = "; ".join(f"{kind}, {len(counts)} stages of {span(counts)} layers" for kind, counts in parts)
    return f"mbs {plan['mbs']}: {text}" + (f"; {len(others)} more pipelines" if others else "")


def span(counts: Sequence[int]) -> str:
    """The least and the most of some counts."""
    least, most = min(counts), max(counts)
    return f"{least}" if least == most else f"{least} to {most}"
