"""Small valid files of every kind, of which cases are made."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from automap_models.core.profiled_model import ProfiledModel

EXAMPLE = Path(__file__).parents[2] / "examples" / "vgg19_v100.npz"
GRAPH_TXT = b"""\
node1 -- Conv(3, 6) -- forward_compute_time=1.5, backward_compute_time=3, activation_size=9, parameter_size=7
node2 -- R -- forward_compute_time=.5, backward_compute_time=5, activation_size=[5; 6], parameter_size=0 -- stage_id=1
node3 -- Linear(9, 9) -- forward_compute_time=2, backward_compute_time=4, activation_size=10, parameter_size=800
\tnode1 -- node2
\tnode2 -- node3
\tnode1 -- node3
"""
TOPO = {"nodes": 2, "devices_per_node": 2, "intra": 130e9, "inter": 3.125e9, "memory": 32e9, "name": "C"}
_GROUP = {"nodes": 1, "devices_per_node": 2, "intra": "130 GB/s", "inter": 3.125e9, "memory": "32 GB"}
MIXED = {"name": "two kinds", "groups": [{**_GROUP, "device": "v100"}, {**_GROUP, "device": "a100", "speed": 2.5}]}
SWEEP = {
    "clusters": ["A", {"base": "A", "inter": {"from": 1e9, "to": 1e10, "steps": 2}}, TOPO],
    "stages": {"from": 1, "to": 2},
    "micro_batches": [2, 4],
    "global_batch": 64,
}
RULES = {"description": "x", "forbid": [{"opcode": "reduce", "phase": "forward", "factor": "any", "except": ["loss"]}]}
TIMES = {
    "schema": 1,
    "kind": "observed",
    "devices": [{"device": i, "forward_s": [0.1], "backward_s": 0.2} for i in range(4)],
}
STAGE_TIMES = {"schema": 1, "kind": "observed", "stages": [{"index": 0, "forward_s": [0.1, 0.2], "backward_s": 0.2}]}
TRACE = {
    "traceEvents": [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": "stage 0"}},
        {"ph": "X", "name": "forward 0", "cat": "forward", "pid": 0, "tid": 0, "ts": 0, "dur": 5.0},
        {"ph": "X", "name": "backward 0", "cat": "backward", "pid": 0, "tid": 0, "ts": 5, "dur": 9.5},
    ]
}
_NODE = {"supportedOnFpga": 1, "cpuLatency": 10, "isBackwardNode": 0, "size": 20, "name": "n"}
PLACEMENT = {
    "maxSizePerFPGA": 1e9,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [{"id": i, "fpgaLatency": i, **_NODE} for i in (1, 2, 3)],
    "edges": [{"sourceId": 1, "destId": 2, "cost": 5}, {"sourceId": 2, "destId": 3, "cost": 6, "size": 3}],
}
SPLIT = {
    "maxLoad": 1,
    "fpgas": [{"load": 1, "nodes": [1, 2]}, {"load": 1, "nodes": []}],
    "cpus": [{"load": 2, "nodes": [3]}],
}
_CHOICE = {
    **{"id": "vanilla", "timePerSample": 0.004, "parameterSize": 10.0, "memoryUsageA": 7.0, "memoryUsageB": 2.0},
    **{"syncTimeFw": {}, "syncTimeBw": {}},
}
PIPER = {
    "maxDevices": 10,
    "maxMemoryPerDevice": 8e10,
    "bandwidth": 2.5e10,
    "mbsInBatch": 1920,
    "nodes": [{"id": i, "TMPCs": {"1": [_CHOICE]}} for i in (5, 6, 7)],
    "edges": [
        {"sourceId": 5, "destId": 6, "communicationCost": 3.0},
        {"sourceId": 6, "destId": 7, "communicationCost": 1},
    ],
}
_VARIABLE = {"shape": [6, 8], "dtype": "f32", "bytes": 192.0, "dim": 1}
STRATEGY = {
    "schema": 1,
    "kind": "strategy",
    "model": "small",
    "strategy": {
        "micro_batch": 1,
        "global_batch": 8,
        "pp": 2,
        "tp": 2,
        "micro_batches": 8,
        "recompute": ["full", "none"],
    },
    "stage_layers": [2, 3],
}
SHARDING = {
    **{"schema": 1, "kind": "operator", "model": "m", "planner": "milp", "objective": "count", "rules": "paper"},
    **{"cluster": TOPO, "devices": 2},
    "variables": {"k": _VARIABLE, "b": {**_VARIABLE, "shape": [8], "dim": -1, "bytes": 32.0}},
    "arguments": {"x": {**_VARIABLE, "kind": "input"}},
    **{"partitioned": 1, "decided_by_propagation": 1, "conflicts": 0},
    **{"reward": 0.9, "search_s": 0.1, "episodes": 0, "interrupted": False, "planning_s": 0.5, "notes": []},
    **{"optimality": {"bound": 1.0, "proof": "exact", "gap": 0.0}, "provenance": {"automap_version": "0", "seed": 1}},
}


_ROTATING: dict[str, object] = {
    **{"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24},
    **{"max_position_embeddings": 32, "torch_dtype": "bfloat16", "rope_theta": 1e4, "num_key_value_heads": 2},
}
CONFIGS: list[dict[str, object]] = [
    {"model_type": "llama", "head_dim": 4, "rope_parameters": {"rope_theta": 1e4}, **_ROTATING},
    {"model_type": "gpt_neox", "rotary_pct": 0.5, **_ROTATING},
    {"model_type": "bloom", "vocab_size": 40, "n_embed": 16, "n_layer": 2, "num_attention_heads": 4, "seq_length": 32},
    {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, **_ROTATING},
    {
        **{"model_type": "deepseek_v3", "kv_lora_rank": 6, "q_lora_rank": 6, "qk_nope_head_dim": 4},
        **{"qk_rope_head_dim": 2, "v_head_dim": 4, "moe_intermediate_size": 8, "n_routed_experts": 4},
        **{"num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, **_ROTATING},
    },
    {
        **{"model_type": "t5", "vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2},
        **{"num_heads": 2, "feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 8},
    },
]
"""config.json of Hugging Face's models."""


OF_OTHERS = {
    "train.sh": b"""\
TP=2
ARGS=(--num-layers 2 --hidden-size 16 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32)
if [ "$TP" == 2 ]; then ARGS+=(--bf16 --vocab-size 40); fi
torchrun --nproc-per-node 4 pretrain_gpt.py ${ARGS[@]} --tensor-model-parallel-size $TP \\
    --micro-batch-size 1 --global-batch-size $((4 * $TP)) --pipeline-model-parallel-layout "Et|tL" \\
    --pipeline-model-parallel-size 2
""",
    "titan.toml": b"""\
[training]
local_batch_size = 2
seq_len = 32
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
""",
    "accelerate.yaml": b"""\
distributed_type: FSDP
mixed_precision: bf16
num_processes: 2
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
parallelism_config: {parallelism_config_tp_size: 2}
""",
    "tune.yaml": b"""\
# a LoRA
base_model: gpt2
sequence_len: 16
adapter: lora
lora_r: 4
lora_target_modules: [q_proj, v_proj]
micro_batch_size: 1  # on a device
gradient_accumulation_steps: 2
optimizer: adamw_torch
bf16: auto
gradient_checkpointing: true
fsdp_config: {reshard_after_forward: true}
""",
    "factory.yaml": b"""\
model_name_or_path: gpt2
finetuning_type: full
cutoff_len: 16
per_device_train_batch_size: 2
deepspeed: {zero_optimization: {stage: 2}, bf16: {enabled: auto}}
""",
    "galvatron.json": b"""\
{"pp_deg": 2, "tp_sizes_enc": "2,2", "dp_types_enc": "0,0", "use_sp": "0,0", "checkpoint": "1,0", "global_bsz": 8,
 "chunks": 2, "pp_division": "1,1", "pipeline_type": "pipedream_flush", "default_dp_type": "zero2", "vtp": 1}
""",
    "bridge.yaml": b"""\
model: {tensor_model_parallel_size: 2, seq_length: 16, recompute_granularity: null, moe_layer_freq: [0, 1]}
train: {global_batch_size: 8, micro_batch_size: 1}
mixed_precision: bf16_mixed
""",
    "verl.sh": b"""\
MICRO=${MICRO:-$((1 * 2))}
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=gpt2 \\
    data.max_prompt_length=8 data.max_response_length=8 trainer.n_gpus_per_node=2 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.rollout.n=2 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=$MICRO
""",
    "zero.json": b'{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}',
}
"""Files of other programs, for automap-doctor."""


def as_json(document: object) -> bytes:
    """A document as a file holds it."""
    return json.dumps(document).encode()


def shipped(name: str) -> bytes:
    """A file of conf/."""
    from automap_models.resources import conf_dir

    return (conf_dir() / name).read_bytes()


def shipped_as_json(name: str) -> bytes:
    """The same as JSON, whose tree can be changed."""
    import yaml

    return as_json(yaml.safe_load(shipped(name)))


@functools.cache
def shipped_policy() -> bytes:
    """The policy of the zoo."""
    from automap_models.planners.staged.policy import SHIPPED
    from automap_models.resources import zoo_dir

    return (zoo_dir() / SHIPPED).read_bytes()


@functools.cache
def tiny_policy() -> bytes:
    """One for 16 points that adds up features."""
    from .policies import write_policy

    with tempfile.TemporaryDirectory() as folder:
        return write_policy(Path(folder, "p.onnx")).read_bytes()


MEASURED_META = {
    "times": "measured per module",
    "device": "mine",
    "dtype": "float32",
    "microbatch_size": 4,
    "update_per_step_s": 0.01,
    "transformer": {"config": '{"model_type": "gpt2"}', "sequence": 16, "dropout": False, "flash": True},
}
"""What a measured profile says, for automap-calibrate."""
MEASURED_STEPS = {
    "rows": [
        {
            "id": "row",
            "source": "us",
            "system": "Megatron-LM 2021",
            "model": {"name": "m", "arch": "gpt", "layers": 4, "hidden": 64, "heads": 4, "seq": 16, "vocab": 32},
            "gpus": 8,
            "gpu_type": "A100-80GB SXM",
            "tp": 2,
            "pp": 2,
            "micro_batch": 1,
            "global_batch": 16,
            "precision": "bf16",
            "note": "4 Omni-Path links a node (100 Gb/s each)",
            "measured": {"iteration_s": 1.0, "memory_gib": 10.0},
        }
    ],
    "sources": {"us": {"what": "a test"}},
}

SMALL_MODELS = b"""
def torch_model(batch=4):
    import torch
    from torch import nn

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.last(self.second(self.first(x).relu()).relu()).mean()

    return Small(), torch.ones(batch, 4)

def jax_model(batch=4):
    import jax.numpy as jnp

    return lambda params, x: jnp.tanh(x @ params).mean(), jnp.ones((4, 4)), jnp.ones((batch, 4))
"""
"""small.py: factories of a model in torch and of one in JAX."""


@functools.cache
def profile() -> bytes:
    """profile.npz of twelve instructions."""
    from automap_models.core.profile import Profile
    from automap_models.formats.npz import write_npz

    rng = np.random.default_rng(1)
    arrays = {
        name: rng.uniform(1, 2, 12) * size for name, size in (("C", 1e-3), ("A", 1e6), ("W", 1e7), ("stash", 1e5))
    }
    names = [f"op{i}" for i in range(12)]
    small = Profile.create(**arrays, names=names, layers=names, meta={"model": "m", "microbatch_size": 4})
    with tempfile.TemporaryDirectory() as folder:
        write_npz(Path(folder, "p.npz"), small)
        return Path(folder, "p.npz").read_bytes()


def model() -> ProfiledModel:
    """Two dense layers in micro-batches of 2 samples, whole or in halves."""
    from automap_models.core.profile import Profile
    from automap_models.core.profiled_model import ProfiledModel, unsharded

    C, both = [10.0, 10.0], {"names": ("dot.0", "dot.1"), "layers": ("one", "two")}
    layers = Profile.create(C, [2e9, 0.0], [8e8, 4e8], [4.0, 4.0], [1e8, 3e8], **both, meta={"microbatch_size": 2})
    halves = replace(
        unsharded(layers),
        name="2-way",
        degree=2,
        **{name: getattr(layers, name) / 2 for name in ("C", "C_fwd", "W")},
        stash=np.array([5e7, 3e8]),
        **{name: np.array(pair) for name, pair in (("reduced_fwd", (0.0, 6e9)), ("reduced_bwd", (4e9, 0.0)))},
        **{name: np.array(pair) for name, pair in (("starts_fwd", (0.0, 1.0)), ("starts_bwd", (1.0, 0.0)))},
        gradients=np.array([1e9, 0.0]),
        dims={"params/one/kernel": 1, "params/two/kernel": 0},
    )
    return ProfiledModel(layers, (halves,), 0.5, {"batch/x": 0}, ("a note",))


def hybrid_plan(folder: Path) -> bytes:
    """plan.json of that model: two halves on one node, then data parallelism on the other."""
    from automap_models.core.cluster import Cluster
    from automap_models.core.result import Bound, PlanReport, Result
    from automap_models.core.staged import StagedPlan, StagedProblem
    from automap_models.cost.staged import plan_cost
    from automap_models.formats.atomic import write_json
    from automap_models.formats.staged_plan import plan_document

    layers, cluster = model(), Cluster(2, 4, intra=100e9, inter=10e9, memory=10e9, name="pair")
    problem = StagedProblem(layers.profile, cluster, stages=2, shardings=layers.shardings, launch_s=layers.launch_s)
    problem = problem.with_split(2, 6, 24)
    plan = StagedPlan((0,), (4,), 6, "exact", (63,), shardings=(1, 0))
    result = Result(problem, plan, plan_cost(problem, plan), "feasible", Bound(20.0, "relaxation"))
    write_json(folder / "hybrid.json", plan_document(PlanReport(**vars(result), single_device_s=1.0)))
    return (folder / "hybrid.json").read_bytes()


@functools.cache
def step() -> dict[str, bytes]:
    """A training step of three layers, two of them in a loop: HLO text, StableHLO text with and without locations."""
    import jax
    import jax.numpy as jnp

    Params = dict[str, jax.Array]

    def train(params: Params, batch: jax.Array) -> tuple[Params, jax.Array]:
        def loss(params: Params) -> jax.Array:
            inner = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch @ params["embed"], params["layers"])[0]
            return (inner @ params["head"]).sum()

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    sizes = {"embed": (8, 16), "layers": (2, 16, 16), "head": (16, 8)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in sizes.items()}
    lowered = jax.jit(train).lower(params, jax.ShapeDtypeStruct((8, 8), jnp.float32))
    return {
        "step.hlo": lowered.compiler_ir("hlo").as_hlo_text().encode(),
        "step.mlir": lowered.as_text(debug_info=True).encode(),
        "bare.mlir": lowered.as_text().encode(),
    }


DATA = ("groups=14", "shard_size=14", "granularity=16", "seed=3", "problem.instructions=[4,40]", "dist=normal")
"""Overrides of a data set that is made in no time."""
TRAINING = (
    *("env.points=16", "env.max_stages=4", "env.max_devices=12", "agent.size.hidden=4", "logger=csv", "export=false"),
    *("data.validation_groups=2", "data.batch=2", "data.steps_per_epoch=2", "data.min_stages=2", "episodes=4"),
    *("agent.learner.branches=1", "agent.learner.batch=2", "agent.learner.iterations=1", "agent.learner.replay=50"),
    *("agent.learner.target_every=3", "trainer.threads=1", "data.path=data"),
)
"""Overrides of a training on it that takes a second."""
SIZES = (
    "problem.cluster.nodes={values: [2, 3], weights: [1, 1]}",
    "problem.cluster.devices_per_node={values: [4], weights: [1]}",
)


@functools.cache
def data_set() -> Mapping[str, bytes]:
    """data/manifest.json and data/shard-00000.npz: fourteen problems on 16 points."""
    from hydra_programs import composed

    from automap_models.datagen.command import make

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        make(composed("datagen", *DATA, *SIZES, f"out={folder}/data"))
        return {
            f"data/{path.name}": path.read_bytes() for path in sorted(Path(folder, "data").iterdir()) if path.is_file()
        }


@functools.cache
def training() -> Mapping[str, bytes]:
    """That data set with what trainings keep beside it, and last.ckpt of a training of two steps on it.

    Kept are the optima of what is held out.
    """
    from hydra_programs import composed

    from automap_models.train.main import train

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        data = Path(folder, "data")
        data.mkdir()
        for name, content in data_set().items():
            Path(folder, name).write_bytes(content)
        train(composed("train", *TRAINING, f"data.path={data}", f"out={folder}/run"))
        files = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in sorted(data.iterdir())}
        return {**files, "last.ckpt": Path(folder, "run", "checkpoints", "last.ckpt").read_bytes()}


CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 256}
QUESTIONS: list[dict[str, object]] = [
    {"model": "gpt2", "cluster": "8xh100", "global_batch": 16, "tp": 2, "pp": 2},
    {"model": "llama3-8b", "cluster": "32xh100", "tp": 4, "zero": 1, "recompute": "selective", "runtime": "megatron"},
    {"model": "qwen3-30b-a3b", "cluster": "16xh100", "ep": 8, "dispatcher": "deepep", "micro_batch": 2},
    {"model": "mine", "config": json.dumps(CONFIG), "cluster": "p4d-4", "layers": [1, 3], "pp": 2, "sequence": 128},
    {"model": "mine", "profile": base64.b64encode(EXAMPLE.read_bytes()).decode(), "cluster": "A", "zero": 2},
    {"model": "t5_base", "cluster": "B", "schedule": "gpipe", "precision": "fp16", "pp": 4, "global_batch": 64},
]
"""To the API of automap serve."""
CALLS: list[tuple[str, dict[str, object]]] = [
    ("price", {"what": "gpt2", "gpus": "8xh100", "tp": 2, "pp": 2, "global_batch": 16}),
    ("price", {"what": "llama3-8b", "topo": "p4d-4", "recompute": "full", "freeze": ["block_?"], "tokens": "1T"}),
    ("doctor", {"what": "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --bf16", "device": "h100"}),
    ("export", {"plan": {"schema": 1, "kind": "strategy", "model": "x", "strategy": {}}, "to": "megatron"}),
]
"""Of tools of automap mcp."""
