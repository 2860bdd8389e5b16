"""Changes at random of calls: each takes a `Call` and returns another one; what is drawn decides it alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from .cases import Call
from .mutations import CHANGES, change_text

# --- calls of commands ---------------------------------------------------------------------------------------------


ARGUMENTS = (
    *("0", "1", "2", "3", "4", "7", "-1", "1.5", "1e400", "nan", "inf", "", " ", "x", "auto", "é", "9" * 30, "1e18"),
    *("=", "A", "C", "good.npz", "graph.txt", "graph.json", "plan.json", "placement.json", "times.json", "sweep.yaml"),
    *("topo.yaml", "out.json", "x" * 300, "x" * 300 + ".npz", "no/such/folder/x.json", ".", "/", "/dev/null", "a=b"),
    *("fc=1", "2,4", "1,1,1", "data=2,model=2", "exact", "policy", "uniform", "length", "step", "1f1b", "gpipe"),
    *("v100", "--", "-h", "--json", "throughput", "latency", "float32", "mlp", "tensor", "pipeline", "\udcff", "%d"),
    *("{}", "[1", "step.hlo", "step.mlir", "hybrid.json", "split.json", "policy.onnx", "shardings.json"),
    *("stages.json", "small:torch_model", "small:jax_model", "small:none", "small"),
)
SENSIBLE: Mapping[str, tuple[str, ...]] = {
    "--topo": ("A", "topo.yaml", "C"),
    "--stages": ("1", "2", "3", "auto"),
    "--micro-batches": ("1", "2", "8", "auto"),
    "--planner": (
        "exact",
        "policy",
        "tables",
        "uniform",
        "data-parallel",
        "auto",
        "greedy",
        "local-search",
        "ideals",
        "milp",
    ),
    "--plan": ("plan.json", "placement.json", "hybrid.json", "shardings.json"),
    "--sweep": ("sweep.yaml",),
    "--observed": ("times.json", "trace.json"),
    "--out": ("out.json", "out.npz", "x" * 300),
    "--trace": ("out-trace.json",),
    "--corrected": ("out.npz",),
    "--policy": ("policy.onnx",),
    "--split": ("split.json",),
    "--mesh": ("data=2,model=2", "data=4", "2"),
    "--device": ("v100", "a100", "device.yaml", "cpu", "cuda"),
    "--backend": ("torch", "jax"),
    "--executor": ("torch", "automap"),
    "--vp": ("1", "2"),
    "--also": ("h100", "device.yaml"),
    "--model": ("gpt2", "x.json"),
    "--accelerator": ("v100", "device.yaml"),
    "--host": ("cpu", "device.yaml"),
    "--rules": ("paper", "shardy", "rules.yaml"),
    "--agent": ("paper", "default", "agent.yaml", "online.yaml"),
    "--warm-start": ("policy", "plan.json"),
    "--episodes": ("1", "5", "20"),
    "--objective": ("length", "step", "throughput", "latency", "time", "memory", "count"),
    "--schedule": ("1f1b", "gpipe", "1f1b-deep", "interleaved", "zb-h1"),
    "--forbid": ("data", "operator", "pipeline"),
    "--pin": ("op3=0", "op11=1", "x=1"),
    "--keep-together": ("op1*", "*", "x"),
    "--granularity": ("12", "16", "128"),
}
"""Values that an option's name suggests; most of an option's values are drawn from them, or are small numbers."""


def _value(random_: random.Random, option: str) -> str:
    if random_.random() < 0.6:
        return random_.choice(SENSIBLE.get(option, ("0", "1", "2", "4", "0.5", "1e9")))
    return random_.choice(ARGUMENTS)


def change_options(flags: Sequence[str], valued: Sequence[str]) -> Callable[[random.Random, list[str]], list[str]]:
    """A change of a command's arguments: options and values put in, taken out or replaced.

    Args:
        flags, valued: the command's options without a value and with one.
    """

    def change(random_: random.Random, arguments: list[str]) -> list[str]:
        changed = list(arguments)
        for _ in range(random_.choice((1, 1, 2, 3))):
            at, kind = random_.randrange(len(changed) + 1), random_.randrange(10)
            if kind == 0:
                del changed[at : at + random_.choice((1, 2))]
            elif kind <= 2 and flags:
                changed += [random_.choice(flags)]
            elif kind <= 5 and at < len(changed) and not changed[at].startswith("--"):
                changed[at] = _value(random_, changed[at - 1] if at else "")
            elif kind == 6:
                changed[at:at] = [random_.choice(ARGUMENTS)]
            elif valued:
                option = random_.choice(valued)
                changed += [option, _value(random_, option)]
        return changed

    return change


SETTINGS = (
    *(
        "0",
        "1",
        "2",
        "3",
        "-1",
        "1.5",
        "1e30",
        "1e308",
        "1e400",
        "nan",
        "inf",
        "-inf",
        "null",
        "true",
        "x",
        "''",
        "9e99",
    ),
    *("[]", "{}", "[1,2]", "[2,1]", "[0,0]", "[1e-30,1e30]", "[-1,1]", "[nan,nan]", "[1,2,3]", "{x:1}", "[[1,2]]"),
    *("{values:[1],weights:[1]}", "{values:[0],weights:[1]}", "{values:[],weights:[]}", "{values:[2],weights:[1e308]}"),
    *(
        "{values:[2,4],weights:[1e308,1e308]}",
        "{values:[2147483648],weights:[1]}",
        "9" * 30,
        "2147483647",
        "é",
        "\udcff",
    ),
    *(
        "???",
        "${seed}",
        "${x}",
        "${oc.env:HOME}",
        "${oc.env:NO}",
        "${",
        "}",
        "'",
        "a=b",
        "x" * 300,
        "/dev/null",
        ".",
        "/",
    ),
    *("no/such/folder/x", "a\\,b", "(", "[" * 900, "data", "run", "last", "last.ckpt", "log", "inverse_length", "mean"),
)
"""Values of a Hydra override."""


def change_overrides(keys: Sequence[str]) -> Callable[[random.Random, list[str]], list[str]]:
    """A change of a Hydra command's overrides: other values, settings put in, taken out, added or misspelt."""

    def change(random_: random.Random, arguments: list[str]) -> list[str]:
        changed = list(arguments)
        for _ in range(random_.choice((1, 1, 1, 2, 3))):
            at, kind, key = random_.randrange(len(changed) + 1), random_.randrange(10), random_.choice(keys)
            if kind == 0:
                del changed[at : at + 1]
            elif kind <= 2 and at < len(changed):
                changed[at] = f"{changed[at].partition('=')[0]}={random_.choice(SETTINGS)}"
            elif kind <= 7:
                changed.append(f"{key}={random_.choice(SETTINGS)}")
            elif kind == 8:
                changed.append(random_.choice((f"~{key}", f"+{key}=1", f"++{key}.x=1", f"{key}.x=1", key, "=", "")))
            else:
                changed.append(f"+{random_.choice(('x', 'dist.x', 'agent.x', 'hydra.x', 'trainer.x'))}=1")
        return changed

    return change


def change_call(
    files: Mapping[str, bytes], change_arguments: Callable[[random.Random, list[str]], list[str]]
) -> Callable[[random.Random, Call], Call]:
    """A change of a call: of its arguments, of a file that they name, or of both.

    Args:
        files: those of the folder.
        change_arguments: of the command.
    """

    def change(random_: random.Random, call: Call) -> Call:
        text = " ".join(call.arguments)
        named = [name for name in files if name in text or ("/" in name and f"={name.partition('/')[0]}" in text)]
        kind = random_.randrange(8) if named else 0
        arguments = change_arguments(random_, list(call.arguments)) if kind <= 4 else list(call.arguments)
        if kind <= 3:
            return replace(call, arguments=arguments)
        name = random_.choice(named)
        changed = {name: CHANGES.get(name[name.rfind(".") :], change_text)(random_, files[name])}
        return Call(arguments, changed | _checksums(random_, files, changed))

    return change


def _checksums(random_: random.Random, files: Mapping[str, bytes], changed: Mapping[str, bytes]) -> dict[str, bytes]:
    """Mostly, the manifest of a data set with the checksum of the shard as it is now, which is not read else."""
    shard = next((name for name in changed if "/shard-" in name), None)
    if shard is None or random_.random() < 0.1:
        return {}
    manifest = shard.partition("/")[0] + "/manifest.json"
    old, new = (hashlib.sha256(content).hexdigest().encode() for content in (files[shard], changed[shard]))
    return {manifest: files[manifest].replace(old, new)}
