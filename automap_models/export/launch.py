"""What starts a program on every node of a cluster: a script for Slurm, a SkyPilot task, a JobSet of Kubernetes.

Each starts torchrun once a node, which starts a process a device. Fields are those of SkyPilot's task YAML and of
jobset.x-k8s.io/v1alpha2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from automap_models.core.cluster import Cluster
from automap_models.errors import BadInput
from automap_models.export.exporter import Exported

TEXT = "tag:yaml.org,2002:str"
PORT = 29500
"""On which the first node is met."""
ACCELERATORS = {"a100": "A100-80GB", "a100-40": "A100", "v100": "V100-32GB"}
"""Device → what SkyPilot calls it, where that is not the same in capitals."""
SLURM = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={devices}
{exports}head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes {nodes} --nproc-per-node {devices} \\
    --rdzv-backend c10d --rdzv-endpoint "$head_node:{port}" --rdzv-id "$SLURM_JOB_ID" \\
    {program}
"""
TORCHRUN = """torchrun --nnodes {nodes} --nproc-per-node {devices} --node-rank "{rank}" \\
    --master-addr "{head}" --master-port {port} \\
    {program}
"""


@dataclass(frozen=True)
class Job:
    """A program on a cluster of equal nodes.

    Attributes:
        name: of lower-case letters, digits and hyphens, a letter first, as Kubernetes calls services.
        program: what torchrun starts, with its arguments.
        variables: of the environment.
        nodes, devices: nodes, and devices of each.
        device: kind of them.
    """

    name: str
    program: str
    variables: Mapping[str, str]
    nodes: int
    devices: int
    device: str

    def torchrun(self, rank: str, head: str) -> str:
        """What a node runs; `rank` is its number and `head` the name of the first one, as a shell writes them."""
        return TORCHRUN.format(rank=rank, head=head, port=PORT, **vars(self))


class _Block(str):
    """A text of several lines, which YAML shows as such."""


def _yaml(**document: Any) -> str:
    return str(yaml.safe_dump(document, sort_keys=False))


yaml.SafeDumper.add_representer(_Block, lambda dumper, text: dumper.represent_scalar(TEXT, text, style="|"))


def slurm(job: Job) -> str:
    """A script for sbatch."""
    exports = "".join(f"export {name}={value}\n" for name, value in job.variables.items())
    return SLURM.format(exports=exports, port=PORT, **vars(job))


def skypilot(job: Job) -> str:
    """A task for `sky launch`."""
    run = _Block(job.torchrun("$SKYPILOT_NODE_RANK", '$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'))
    resources = {"accelerators": f"{ACCELERATORS.get(job.device, job.device.upper())}:{job.devices}"}
    return _yaml(name=job.name, num_nodes=job.nodes, resources=resources, envs=dict(job.variables), run=run)


def jobset(job: Job) -> str:
    """A JobSet for `kubectl apply`, of one job with a pod a node; its pods share memory, as NCCL wants."""
    run = job.torchrun("$JOB_COMPLETION_INDEX", f"{job.name}-node-0-0.{job.name}")
    gpus = f"{'amd' if job.device.startswith('mi') else 'nvidia'}.com/gpu"
    container = {
        "name": "train",
        "image": "IMAGE",
        "command": ["bash", "-c", _Block(run)],
        "env": [{"name": name, "value": value} for name, value in job.variables.items()],
        "resources": {"limits": {gpus: job.devices}},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    volume = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}
    size = {"parallelism": job.nodes, "completions": job.nodes, "completionMode": "Indexed", "backoffLimit": 0}
    jobs = [{"name": "node", "replicas": 1, "template": {"spec": {**size, "template": {"spec": pod}}}}]
    head = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": job.name}}
    return _yaml(**head, spec={"replicatedJobs": jobs})


LAUNCHERS: Mapping[str, tuple[Callable[[Job], str], str, tuple[str, ...]]] = {
    "slurm": (slurm, ".sbatch", ()),
    "skypilot": (skypilot, ".sky.yaml", ()),
    "jobset": (jobset, ".jobset.yaml", ("IMAGE in the JobSet stands for your container's image",)),
}
"""One of targets.LAUNCHES → its text for a job, the ending of its file, and notes."""
PROGRAMS: Mapping[str, str] = {"torch-split-spec": "{file} my_module:make_model"}
"""Target → what torchrun starts, where the file is the program; of others a train.py that takes the file."""
VARIABLES: Mapping[str, Mapping[str, str]] = {"megatron": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}
"""Target → variables of the environment that it asks for: one connection keeps Megatron's kernels in order."""


def launch(exported: Exported, launcher: str, cluster: Cluster, device: str, path: Path) -> Exported:
    """The same export with the file that launches it: in place of the target's where that is nothing but its program's
    arguments, else beside it.

    Args:
        exported: the plan's files.
        launcher: a key of LAUNCHERS.
        cluster: that the plan is for.
        device: kind of its devices.
        path: where the first file goes.

    Raises:
        BadInput: nodes have different numbers of devices, or torchrun does not start programs of the target.
    """
    cluster.require_uniform(f"a file for {launcher}", "take a cluster of equal nodes")
    if exported.target == "jax":
        raise BadInput("is for programs that torchrun starts", where="`launch`", do="leave it out")
    write, ending, notes = LAUNCHERS[launcher]
    written = exported.written
    name = re.sub(r"[^a-z0-9]+", "-", exported.source.name.lower())[:40].lstrip("-0123456789").rstrip("-") or "model"
    program = written.program or PROGRAMS.get(exported.target, "train.py").format(file=path.name)
    sizes = cluster.nodes, cluster.devices_per_node
    text = write(Job(name, program, VARIABLES.get(exported.target, {}), *sizes, device))
    notes = (*written.notes, *notes)
    if written.program:
        return replace(exported, written=replace(written, text=text, notes=notes))
    notes += (f"{path.with_suffix(ending).name} starts {program}: {program.split()[-1]} is yours, and has {path.name}",)
    return replace(exported, written=replace(written, beside={**written.beside, ending: text}, notes=notes))
