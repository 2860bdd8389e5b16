"""Every reader of a file."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from . import samples
from .cases import Target, of_file
from .commands import in_folder, infer_files, place_files, plans
from .mutations import change_json, change_lines, change_npz, change_onnx, change_text


def profiles() -> dict[str, Target]:
    """Files with times and sizes."""
    from automap_models.formats.files import read_profile

    placement, piper = samples.as_json(samples.PLACEMENT), samples.as_json(samples.PIPER)
    return {
        "npz": Target([samples.profile()], of_file(read_profile, "p.npz"), change_npz),
        "graph.txt": Target([samples.GRAPH_TXT], of_file(read_profile, "g.txt"), change_text),
        "piper": Target([piper], of_file(read_profile, "g.json"), change_json),
        "placement graph as profile": Target([placement], of_file(read_profile, "g.json"), change_json),
    }


def descriptions() -> dict[str, Target]:
    """YAML."""
    from automap_models.formats.hardware_yaml import read_cluster, read_device
    from automap_models.formats.sweep_yaml import read_sweep
    from automap_models.hlo.rule_sets import read_rule_set
    from automap_models.planners.agent_yaml import read_pipeline_agent, read_search_agent

    def both(name: str) -> list[bytes]:
        return [samples.shipped(name), samples.shipped_as_json(name)]

    readers: dict[str, tuple[Callable[[Path], object], list[bytes]]] = {
        "cluster": (
            read_cluster,
            [*both("topo/C.yaml"), *both("topo/p4d-p3dn.yaml"), *map(samples.as_json, (samples.TOPO, samples.MIXED))],
        ),
        "device": (read_device, both("device/v100.yaml")),
        "sweep": (read_sweep, [samples.as_json(samples.SWEEP)]),
        "rules": (read_rule_set, [*both("rules/paper.yaml"), samples.as_json(samples.RULES)]),
        "search agent": (read_search_agent, both("search/paper.yaml")),
        "online agent": (read_pipeline_agent, both("agent/default.yaml")),
    }
    return {name: Target(valid, of_file(read, "d.yaml"), change_json) for name, (read, valid) in readers.items()}


def documents() -> dict[str, Target]:
    """JSON of ours and of others."""
    from automap_models.core.placement import PlacementProblem
    from automap_models.core.profile import Profile
    from automap_models.export.target import read_source
    from automap_models.formats.files import read_profile
    from automap_models.formats.measured_rows import read_measured_steps
    from automap_models.formats.observed_json import read_observed
    from automap_models.formats.placement_plan import read_placement_plan, read_split
    from automap_models.formats.plan import written_plan
    from automap_models.formats.planning_graphs import read_placement
    from automap_models.formats.schema import decode_json
    from automap_models.formats.sharding_plan import read_sharding_plan
    from automap_models.formats.staged_plan import StagedDocument, read_plan
    from automap_models.workloads.config_json import read_config
    from automap_models.workloads.measured import measured_passes

    def measured(path: Path) -> object:
        meta = decode_json(path.read_bytes(), dict[str, object], where="p.npz")
        return measured_passes(Profile.create([2.0, 2.0], [1.0, 0.0], [1.0, 1.0], meta=meta), "p.npz")

    layers, (plan, placed) = samples.model(), plans()
    with in_folder(infer_files() | place_files()):
        whole, graph = read_profile("good.npz"), read_placement("graph.json")
        problem, hybrid = PlacementProblem.create(graph), samples.hybrid_plan(Path())
    former = (Path(__file__).parents[1] / "formats" / "former_plans" / "hybrid.json").read_bytes()
    times = [samples.as_json(document) for document in (samples.TIMES, samples.STAGE_TIMES, samples.TRACE)]
    readers: dict[str, tuple[Callable[[Path], object], list[bytes]]] = {
        "times": (read_observed, times),
        "placement graph": (read_placement, [samples.as_json(samples.PLACEMENT)]),
        "split": (lambda path: read_split(path, problem), [samples.as_json(samples.SPLIT)]),
        "placement": (lambda path: read_placement_plan(path, lambda _: graph), [placed]),
        "plan": (lambda path: read_plan(path, whole), [plan]),
        "plan to run": (lambda path: written_plan(path, StagedDocument), [plan, hybrid, former]),
        "hybrid plan": (lambda path: read_plan(path, layers), [hybrid]),
        "strategy": (read_source, [samples.as_json(samples.STRATEGY)]),
        "measured steps": (read_measured_steps, [samples.as_json(samples.MEASURED_STEPS)]),
        "measured profile": (measured, [samples.as_json(samples.MEASURED_META)]),
        "config": (read_config, [samples.as_json(config) for config in samples.CONFIGS]),
        "sharding plan": (read_sharding_plan, [samples.as_json(samples.SHARDING)]),
    }
    return {name: Target(valid, of_file(read, "d.json"), change_json) for name, (read, valid) in readers.items()}


def stored() -> dict[str, Target]:
    """What our own programs keep: data sets and cached models."""
    from automap_models.core.profiled_model import ProfiledModel
    from automap_models.formats.atomic import decode_record, encode_record
    from automap_models.formats.dataset import KIND, read_dataset, write_shard

    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder, "shard-00000.npz")
        entry = write_shard(shard, {"arrays": np.ones((3, 5, 4), np.float32), "stages": np.ones(3, np.int32)})
        content = shard.read_bytes()
    manifest = {
        **{"schema": 1, "kind": KIND, "granularity": 4, "groups": 3, "seed": 1, "distributions": ["normal"]},
        **{"ranges": {}, "config": {}, "shards": [entry]},
    }

    def of_manifest(path: Path) -> object:
        Path("shard-00000.npz").write_bytes(content)
        return read_dataset(path.parent)

    def of_shard(path: Path) -> object:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        Path("manifest.json").write_text(json.dumps({**manifest, "shards": [{**entry, "sha256": digest}]}))
        return read_dataset(path.parent)

    return {
        "manifest": Target([samples.as_json(manifest)], of_file(of_manifest, "manifest.json"), change_json),
        "shard": Target([content], of_file(of_shard, "shard-00000.npz"), change_npz),
        "cached model": Target(
            [encode_record(samples.model())], lambda content: decode_record(content, ProfiledModel), change_json
        ),
    }


def policies() -> dict[str, Target]:
    """ONNX, opened and asked for a plan."""
    from automap_models.core.staged import StagedProblem
    from automap_models.formats.files import read_profile
    from automap_models.formats.hardware_yaml import read_cluster
    from automap_models.planners.registry import make_planner

    with in_folder(infer_files()):
        problem = StagedProblem(read_profile("good.npz"), read_cluster("topo.yaml"), stages=2, micro_batches=4)
        small = replace(problem, granularity=16)

    def plan(path: Path) -> object:
        planner = make_planner("policy", policy=path, beam=1)
        return planner.solve(small if planner.policy.points == 16 else problem)

    valid = [*[samples.tiny_policy()] * 19, samples.shipped_policy()]  # a tenth of a second for each of the latter
    return {"policy": Target(valid, of_file(plan, "p.onnx"), change_onnx)}


def modules() -> dict[str, Target]:
    """HLO and StableHLO, parsed by a process of their own and made an instruction graph."""
    from automap_models.hlo.adapter import read_module
    from automap_models.hlo.flat_module import bytecode, flat_module_of_file
    from automap_models.hlo.graph import instruction_graph

    def read(path: Path) -> object:
        return instruction_graph(read_module(path))

    step = samples.step()
    binary = bytecode(flat_module_of_file(step["bare.mlir"], "stablehlo"))
    share = 0.2  # each starts a process
    return {
        "HLO text": Target([step["step.hlo"]], of_file(read, "step.hlo"), change_lines, share),
        "StableHLO text": Target(
            [step["step.mlir"], step["bare.mlir"]], of_file(read, "step.mlir"), change_lines, share
        ),
        "StableHLO bytecode": Target([binary], of_file(read, "step.mlirbc"), change_text, share),
    }
