"""What launches a plan: files that shells and YAML read, with the fields that SkyPilot and JobSet publish."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import automap_models as am
from automap_models.errors import BadInput
from automap_models.export.launch import LAUNCHERS, Job
from automap_models.export.targets import LAUNCHES
from automap_models.infer.app import export as run_export
from automap_models.infer.app import plan as run_plan

SKYPILOT = {"name", "workdir", "num_nodes", "resources", "envs", "secrets", "file_mounts", "setup", "run", "config"}
"""Keys of a task (docs.skypilot.co/en/stable/reference/yaml-spec.html)."""
PODS = {"parallelism", "completions", "completionMode", "backoffLimit", "template"}
"""Keys of a Job's specification that are used here (kubernetes.io, Job v1)."""
JOB = Job("bert-48", "train.py --layout 'Et*14|t*10L' --x \"a b\"", {"NAME": "1"}, 3, 4, "a100-40")
PROGRAM = ["train.py", "--layout", "Et*14|t*10L", "--x", "a b"]
STRATEGY = {"global_batch": 64, "tp": 2, "pp": 2, "layers": (5, 7)}


def started(text: str, folder: Path, **environment: str) -> list[str]:
    """The arguments that a script gives torchrun, as another program sees them."""
    for name, body in {
        "torchrun": 'printf "%s\\n" "$@"',
        "srun": 'exec "$@"',
        "scontrol": "printf 'n1\\nn2\\nn3\\n'",
    }.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", text], env={"PATH": path, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def options(arguments: list[str]) -> dict[str, str]:
    """torchrun's own options, which stand before its program."""
    first = arguments[: len(arguments) - len(PROGRAM)]
    assert arguments[len(first) :] == PROGRAM
    return dict(zip(first[::2], first[1::2], strict=True))


def test_a_script_for_slurm_starts_the_program_on_every_node(tmp_path: Path) -> None:
    text = LAUNCHERS["slurm"][0](JOB)
    heads = dict(line.removeprefix("#SBATCH --").split("=") for line in text.splitlines() if line.startswith("#SBATCH"))
    assert heads == {"job-name": "bert-48", "nodes": "3", "ntasks-per-node": "1", "gpus-per-node": "4"}
    assert "export NAME=1\n" in text
    assert options(started(text, tmp_path, SLURM_JOB_NODELIST="n[1-3]", SLURM_JOB_ID="7")) == {
        **{"--nnodes": "3", "--nproc-per-node": "4", "--rdzv-backend": "c10d"},
        **{"--rdzv-endpoint": "n1:29500", "--rdzv-id": "7"},
    }


def test_a_task_for_skypilot_has_its_fields_and_reads_its_variables(tmp_path: Path) -> None:
    """SKYPILOT_NODE_IPS has an address a line, the first one of the node of rank 0."""
    task = yaml.safe_load(LAUNCHERS["skypilot"][0](JOB))
    assert task.keys() <= SKYPILOT
    assert (task["num_nodes"], task["resources"], task["envs"]) == (3, {"accelerators": "A100:4"}, {"NAME": "1"})
    variables = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3", "SKYPILOT_NODE_RANK": "2"}
    assert options(started(task["run"], tmp_path, **variables)) == {
        **{"--nnodes": "3", "--nproc-per-node": "4", "--node-rank": "2"},
        **{"--master-addr": "10.0.0.1", "--master-port": "29500"},
    }


def test_a_jobset_has_a_pod_a_node_that_meet_at_the_first_one(tmp_path: Path) -> None:
    """A pod's name is JOBSET-JOB-0-INDEX, and their domain is called as the JobSet (jobset.sigs.k8s.io)."""
    document = yaml.safe_load(LAUNCHERS["jobset"][0](JOB))
    assert (document["apiVersion"], document["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (job,) = document["spec"]["replicatedJobs"]
    pods = job["template"]["spec"]
    assert pods.keys() == PODS
    assert (pods["parallelism"], pods["completions"], pods["completionMode"]) == (3, 3, "Indexed")
    (container,) = pods["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 4}}
    assert container["env"] == [{"name": "NAME", "value": "1"}]
    bash, flag, run = container["command"]
    assert (bash, flag) == ("bash", "-c")
    assert options(started(run, tmp_path, JOB_COMPLETION_INDEX="1")) == {
        **{"--nnodes": "3", "--nproc-per-node": "4", "--node-rank": "1"},
        **{"--master-addr": "bert-48-node-0-0.bert-48", "--master-port": "29500"},
    }


def test_the_launchers_are_those_that_the_command_knows() -> None:
    assert (*LAUNCHERS,) == LAUNCHES


@pytest.mark.parametrize("launcher", LAUNCHES)
def test_of_megatron_the_arguments_are_in_it(launcher: str, tmp_path: Path) -> None:
    price = am.price("gpt2", "p4d-4", **STRATEGY)
    exported = am.export(price, "megatron", launch=launcher)
    arguments = am.export(price, "megatron").written
    assert arguments.program in exported.written.text.replace("''", "'")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in exported.written.text
    assert exported.written.beside == {}
    lines = [line for line in arguments.text.splitlines() if not line.startswith("#")]
    assert [word for line in lines for word in shlex.split(line)] == shlex.split(arguments.program)[1:]


@pytest.mark.parametrize(
    ("model", "name"), [("7B_Chat.v2", "b-chat-v2"), ("123", "model"), ("a" * 39 + "/b", "a" * 39)]
)
def test_a_job_is_called_as_kubernetes_allows(model: str, name: str) -> None:
    """A service's name begins with a letter, ends with none of its hyphens and is short (RFC 1035)."""
    price = replace(am.price("gpt2", "p4d-4", **STRATEGY), model=model)
    text = am.export(price, "megatron", launch="jobset").written.text
    assert yaml.safe_load(text)["metadata"] == {"name": name}


def test_of_others_it_lies_beside_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strategy, out = tmp_path / "strategy.json", tmp_path / "pipeline.py"
    words = "gpt2 --topo p4d-4 --global-batch 64 --pp 2 --price --out"
    assert run_plan([*words.split(), str(strategy)]) == 0
    assert run_export([str(strategy), "--to", "deepspeed", "--launch", "skypilot", "--out", str(out)]) == 0
    assert "pipeline.sky.yaml starts train.py: train.py is yours, and has pipeline.py" in capsys.readouterr().err
    task: dict[str, Any] = yaml.safe_load((tmp_path / "pipeline.sky.yaml").read_text())
    assert task["resources"] == {"accelerators": "A100:8"}
    assert task["envs"] == {}
    assert run_export([str(strategy), "--to", "deepspeed", "--launch", "skypilot"]) == 2
    assert "takes 2 files for this plan; give the name of the first" in capsys.readouterr().err
    assert run_export([str(strategy), "--to", "megatron", "--launch", "slurm"]) == 0
    assert "#SBATCH --nodes=4\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"launch": "mpi"}, "`launch`: is 'mpi'; choose from slurm, skypilot, jobset"),
        ({"launch": "slurm", "cluster": "A"}, "`topo`: cluster A has 16 devices, and the strategy 32"),
        ({"launch": "slurm", "cluster": "p4d-p3dn"}, "mixed"),
    ],
)
def test_what_cannot_be_launched_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as refusal:
        am.export(am.price("gpt2", "p4d-4", **STRATEGY), "megatron", **options)
    assert words in str(refusal.value)


def test_a_plan_whose_cluster_is_a_file_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("{nodes: 1, devices_per_node: 8, device: h100, memory: 80 GB, intra: 450 GB/s}")
    price = am.price("gpt2", tmp_path / "mine.yaml", **STRATEGY)
    with pytest.raises(BadInput, match="does not say which nodes it is for; give them, such as `gpus` 32xh100"):
        am.export(price, "megatron", launch="slurm")
    script = am.export(price, "megatron", launch="slurm", cluster=tmp_path / "mine.yaml").written.text
    assert "#SBATCH --nodes=1\n" in script
