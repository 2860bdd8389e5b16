"""Damaged files and random arguments for every reader and every command: each ends in a result or in one sentence.

    python tests/fuzz.py --cases 1000000                      every target
    python tests/fuzz.py --cases 5000 --target sweep --seed 7 one target, other cases

A case is a valid file, or the arguments of a command, changed at random by a generator that (target, seed, number)
decide. It runs inside a child process, many to a child, which may hold 1 GB; a case that raises anything but an
AutomapError, that returns an exit code other than 0, 2 and 3, that takes more than 10 s of processor time or that kills
the child is a failure. Failures are printed with the case that made them; the file or the arguments go to a folder, and
a case that was fixed belongs into tests/fuzz_cases, which is replayed first.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import itertools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

KEPT = Path(__file__).with_name("fuzz_cases")
LARGEST_BYTES = 1 << 30
LONGEST_S = 10.0
"""Processor time of a case, so that a busy machine fails none."""
LONGEST_WAIT_S = 120.0
"""Time by the clock after which a case waits for something that does not come."""
CASES_A_CHILD = 2_000

Content = bytes | list[str]
"""A case: the content of a file, or the arguments of a command."""


@dataclass(frozen=True)
class Target:
    """Something that takes what a user gives.

    Attributes:
        valid: contents, one of which is changed; for a command, arguments that work.
        run: the reader or the command; takes a content, runs in a folder of its own.
        change: makes a case of a valid content.
    """

    valid: list[Content]
    run: Callable[[Any], object]
    change: Callable[[random.Random, Any], Content]


@dataclass
class Outcome:
    """What came out of a target's cases: how many ran, how many were refused, and what failed."""

    cases: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)


class TooLongError(BaseException):
    """A case takes more than LONGEST_S of processor time."""


# --- changes -------------------------------------------------------------------------------------------------------

TOKENS = (
    *("NaN", "Infinity", "-1", "0", "1e400", "1e308", "1e-320", "-0.0", "true", "null", "4.5", "9" * 40, "9" * 5000),
    *("{}", "[]", "[[", "{", "}", '"', "'", ":", ",", "\\ud800", "\ufeff", "\x00", "\n", "\t", "- ", "? ", "| ", "> "),
    *('!!int ""', "!!bool maybe", "!!timestamp foo", "!!float x", "!!python/name:os.system", "&a [*a]", "*a", "<<: {}"),
    *("é", "\U0001f600", "x" * 300, "%s", "../x", "-- ", "--- ", "[1; 2]", " -- stage_id=1", "_time=", "# "),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 4.5, 1e18, 1e60, 1e200, 1e308, 1e-320, -1e308, float("nan"), float("inf")),
    *(2**31, 2**53, 2**63, 2**64, 10**30, 10**400, "", " ", "x", "7", "1e9", "auto", "x" * 300, "\ud800", "é\x00"),
    *([], {}, [[]], [1, 2], [None], {"x": 1}, {"from": 1e-320, "to": 1e308, "steps": 3}, {"from": 1, "to": 10**9}),
)


def change_text(random_: random.Random, content: bytes) -> bytes:
    """Bytes flipped, cut out, doubled, swapped or put in."""
    data = bytearray(content)
    for _ in range(random_.choice((1, 1, 1, 2, 3, 8))):
        at, span = random_.randrange(len(data) + 1), random_.choice((1, 1, 2, 4, 16, 64, 256))
        kind = random_.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << random_.randrange(8)
        elif kind == 1:
            del data[at : at + span]
        elif kind == 2:
            data[at:at] = data[at : at + span] * random_.choice((1, 2, 50))
        elif kind == 3:
            data[at:at] = random_.choice(TOKENS).encode("utf-8", errors="surrogatepass")
        elif kind == 4:
            del data[at:]
        else:
            numbers = list(re.finditer(rb"[0-9][0-9.eE+-]*", bytes(data)))
            if numbers:
                match = random_.choice(numbers)
                data[match.start() : match.end()] = random_.choice(TOKENS[:13]).encode()
    return bytes(data)


def change_tree(random_: random.Random, document: Any) -> Any:
    """The document with some of its values replaced, removed, doubled, renamed or nested."""
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        spots = list(_spots(document))
        if not spots:
            return random_.choice(VALUES)
        owner, key = random_.choice(spots)
        kind = random_.randrange(6)
        if kind == 0:
            del owner[key]
        elif kind == 1 and isinstance(owner, list):
            owner.insert(random_.randrange(len(owner) + 1), owner[key])
        elif kind == 1:
            owner[random_.choice(("x", "", "schema", "kind", "nodes", "é", "x" * 300))] = owner.pop(key)
        elif kind == 2:
            other, other_key = random_.choice(spots)
            if not _within(owner[key], other):
                other[other_key] = owner[key]
        elif kind == 3:
            for _ in range(random_.choice((1, 2, 2, 5, 5, 50, 50, 900))):
                owner[key] = [owner[key]]
        else:
            owner[key] = random_.choice(VALUES)
    return document


def _spots(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every list and dictionary of a document with each of its indices and keys."""
    stack = [document]
    while stack:
        owner = stack.pop()
        if isinstance(owner, dict | list):
            items = list(owner.items() if isinstance(owner, dict) else enumerate(owner))
            yield from ((owner, key) for key, _ in items)
            stack += [value for _, value in items]


def _within(document: Any, owner: Any) -> bool:
    """Whether a list or dictionary is a part of the document, which it must not hold then."""
    return document is owner or any(part[key] is owner for part, key in _spots(document))


def change_json(random_: random.Random, content: bytes) -> bytes:
    """JSON, or the JSON that YAML includes: the tree or the text changed."""
    if random_.random() < 0.4:
        return change_text(random_, content)
    try:
        return json.dumps(change_tree(random_, json.loads(content))).encode()
    except RecursionError:
        return b"[" * 100_000
    except ValueError:  # YAML of the kind that is no JSON
        return change_text(random_, content)


def change_npz(random_: random.Random, content: bytes) -> bytes:
    """An archive with other arrays, or other bytes."""
    if random_.random() < 0.3:
        return change_text(random_, content)
    with np.load(io.BytesIO(content)) as archive:
        arrays: dict[str, Any] = dict(archive)
    for _ in range(random_.choice((1, 1, 2))):
        name = random_.choice(list(arrays))
        array, kind = arrays[name], random_.randrange(8)
        if kind == 0:
            del arrays[name]
        elif kind == 1:
            arrays[name] = np.array(
                random_.choice(("{}", "[1", '{"microbatch_size": 1e400}', "\ud800", "x" * 999, "[" * 9999))
            )
        elif kind == 2:
            arrays[name] = (
                np.asarray(array).astype(random_.choice(("f4", "i8", "U5", "S3", "c16", "?", "f2")), copy=True)
                if array.dtype.kind in "fi"
                else array[..., None]
            )
        elif kind == 3:
            arrays[name] = np.resize(array, random_.choice(((0,), (1,), (3,), (2, 6), (), (40,))))
        elif kind == 4 and array.dtype.kind == "f" and array.size:
            changed = array.copy()
            changed.flat[random_.randrange(array.size)] = random_.choice(
                (np.nan, np.inf, -1.0, 1e200, 1e60, 1e18, 1e-320, 0.0, 1e9)
            )
            arrays[name] = changed
        elif kind == 5:
            arrays[name] = array * 0 if array.dtype.kind == "f" else array
        elif kind == 6:
            arrays[random_.choice(("C", "x", "meta", "0/C"))] = array
        else:
            return _lying_archive(random_, arrays)
        if not arrays:
            break
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _lying_archive(random_: random.Random, arrays: Mapping[str, Any]) -> bytes:
    """An archive one of whose headers declares what is not there."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        lying = random_.choice(list(arrays))
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                if name != lying:
                    np.lib.format.write_array(member, array, allow_pickle=False)
                    continue
                shape = random_.choice(((10**12,), (60_000_000,), (0,), (2**62, 4), (-1,), ()))
                descr = random_.choice(("<f8", "|O", "<U100000000", "|V8", "<f16"))
                np.lib.format.write_array_header_1_0(member, {"descr": descr, "fortran_order": False, "shape": shape})
                member.write(bytes(random_.randrange(64)))
    return buffer.getvalue()


ARGUMENTS = (
    *(
        "0",
        "1",
        "2",
        "3",
        "4",
        "7",
        "-1",
        "1.5",
        "1e400",
        "nan",
        "inf",
        "",
        " ",
        "x",
        "auto",
        "é",
        "9" * 30,
        "1e18",
        "=",
    ),
    *("A", "C", "good.npz", "graph.txt", "graph.json", "plan.json", "placement.json", "times.json", "sweep.yaml"),
    *("topo.yaml", "out.json", "x" * 300, "x" * 300 + ".npz", "no/such/folder/x.json", ".", "/", "/dev/null", "a=b"),
    *(
        "fc=1",
        "2,4",
        "1,1,1",
        "data=2,model=2",
        "exact",
        "policy",
        "uniform",
        "length",
        "step",
        "1f1b",
        "gpipe",
        "v100",
    ),
    *(
        "--",
        "-h",
        "--json",
        "throughput",
        "latency",
        "float32",
        "mlp",
        "tensor",
        "pipeline",
        "\udcff",
        "%d",
        "{}",
        "[1",
    ),
)


SENSIBLE: dict[str, tuple[str, ...]] = {
    "--topo": ("A", "topo.yaml", "C"),
    "--stages": ("1", "2", "3", "auto"),
    "--micro-batches": ("1", "2", "8", "auto"),
    "--planner": ("exact", "policy", "uniform", "data-parallel", "auto", "greedy", "local-search", "ideals"),
    "--plan": ("plan.json", "placement.json"),
    "--sweep": ("sweep.yaml",),
    "--observed": ("times.json",),
    "--out": ("out.json", "out.npz", "x" * 300),
    "--trace": ("trace.json",),
    "--split": ("graph.json",),
    "--mesh": ("data=2,model=2", "data=4"),
    "--objective": ("length", "step", "throughput", "latency", "time", "memory", "count"),
    "--schedule": ("1f1b", "gpipe", "1f1b-deep"),
}
"""Values that an option's name suggests; most of an option's values are drawn from them, or are small numbers."""


def _value(random_: random.Random, option: str) -> str:
    if random_.random() < 0.6:
        return random_.choice(SENSIBLE.get(option, ("0", "1", "2", "4", "0.5", "1e9")))
    return random_.choice(ARGUMENTS)


def change_arguments(flags: list[str], valued: list[str]) -> Callable[[random.Random, list[str]], list[str]]:
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


# --- targets -------------------------------------------------------------------------------------------------------

GRAPH_TXT = b"""\
node1 -- Conv(3, 6) -- forward_compute_time=1.5, backward_compute_time=3, activation_size=9, parameter_size=7
node2 -- R -- forward_compute_time=.5, backward_compute_time=5, activation_size=[5; 6], parameter_size=0 -- stage_id=1
node3 -- Linear(9, 9) -- forward_compute_time=2, backward_compute_time=4, activation_size=10, parameter_size=800
\tnode1 -- node2
\tnode2 -- node3
\tnode1 -- node3
"""
TOPO = {"nodes": 2, "devices_per_node": 2, "intra": 130e9, "inter": 3.125e9, "memory": 32e9, "name": "C"}
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
PLACEMENT = {
    "maxSizePerFPGA": 1e9,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {
            "id": i,
            "supportedOnFpga": 1,
            "cpuLatency": 10,
            "fpgaLatency": i,
            "isBackwardNode": 0,
            "size": 20,
            "name": "n",
        }
        for i in (1, 2, 3)
    ],
    "edges": [{"sourceId": 1, "destId": 2, "cost": 5}, {"sourceId": 2, "destId": 3, "cost": 6, "size": 3}],
}
PIPER_CHOICE = {
    "id": "vanilla",
    "timePerSample": 0.004,
    "parameterSize": 10.0,
    "memoryUsageA": 7.0,
    "memoryUsageB": 2.0,
}
PIPER = {
    "maxDevices": 10,
    "maxMemoryPerDevice": 8e10,
    "bandwidth": 2.5e10,
    "mbsInBatch": 1920,
    "nodes": [{"id": i, "TMPCs": {"1": [{**PIPER_CHOICE, "syncTimeFw": {}, "syncTimeBw": {}}]}} for i in (5, 6, 7)],
    "edges": [
        {"sourceId": 5, "destId": 6, "communicationCost": 3.0},
        {"sourceId": 6, "destId": 7, "communicationCost": 1},
    ],
}
SPLIT = {
    "maxLoad": 1,
    "fpgas": [{"load": 1, "nodes": [1, 2]}, {"load": 1, "nodes": []}],
    "cpus": [{"load": 2, "nodes": [3]}],
}
VARIABLE = {"shape": [6, 8], "dtype": "f32", "bytes": 192.0, "dim": 1}
SHARDING = {
    **{"schema": 1, "kind": "operator", "model": "m", "planner": "milp", "objective": "count", "rules": "paper"},
    **{
        "cluster": TOPO,
        "devices": 2,
        "variables": {"k": VARIABLE, "b": {**VARIABLE, "shape": [8], "dim": -1, "bytes": 32.0}},
    },
    **{
        "arguments": {"x": {**VARIABLE, "kind": "input"}},
        "partitioned": 1,
        "decided_by_propagation": 1,
        "conflicts": 0,
    },
    **{"reward": 0.9, "search_s": 0.1, "episodes": 0, "interrupted": False, "planning_s": 0.5, "notes": []},
    **{"optimality": {"bound": 1.0, "proof": "exact", "gap": 0.0}, "provenance": {"automap_version": "0", "seed": 1}},
}


def small_profile() -> bytes:
    """profile.npz of twelve instructions."""
    from automap_models.core.profile import Profile
    from automap_models.formats.npz import write_npz

    rng = np.random.default_rng(1)
    arrays = {
        name: rng.uniform(1, 2, 12) * size for name, size in (("C", 1e-3), ("A", 1e6), ("W", 1e7), ("stash", 1e5))
    }
    names = [f"op{i}" for i in range(12)]
    profile = Profile.create(**arrays, names=names, layers=names, meta={"model": "m", "microbatch_size": 4})
    with tempfile.TemporaryDirectory() as folder:
        write_npz(Path(folder, "p.npz"), profile)
        return Path(folder, "p.npz").read_bytes()


def target_named(name: str) -> Target:
    """A reader or a command, with what it needs."""
    make = next(make for make, names in GROUPS.items() if name in names)
    return make(small_profile())[name]


def _json(*documents: object) -> list[Content]:
    return [json.dumps(document).encode() for document in documents]


def _file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    def run(content: bytes) -> object:
        path = Path(name)
        path.write_bytes(content)
        return read(path)

    return run


def _profiles(profile: bytes) -> dict[str, Target]:
    from automap_models.formats.files import read_profile

    return {
        "npz": Target([profile], _file(read_profile, "p.npz"), change_npz),
        "graph.txt": Target([GRAPH_TXT], _file(read_profile, "g.txt"), change_text),
        "piper": Target(_json(PIPER), _file(read_profile, "g.json"), change_json),
        "placement graph as profile": Target(_json(PLACEMENT), _file(read_profile, "g.json"), change_json),
    }


def _descriptions(_: bytes) -> dict[str, Target]:
    import yaml

    from automap_models.formats.hardware_yaml import read_cluster, read_device
    from automap_models.formats.sweep_yaml import read_sweep
    from automap_models.hlo.rule_sets import read_rule_set
    from automap_models.planners.agent_yaml import read_online_agent, read_search_config
    from automap_models.resources import conf_dir

    def shipped(*names: str) -> list[Content]:
        texts = [(conf_dir() / name).read_bytes() for name in names]
        return [*texts, *_json(*(yaml.safe_load(text) for text in texts))]

    readers: dict[str, tuple[Callable[[Path], object], list[Content]]] = {
        "cluster": (read_cluster, [*shipped("topo/C.yaml"), *_json(TOPO)]),
        "device": (read_device, shipped("device/v100.yaml")),
        "sweep": (read_sweep, _json(SWEEP)),
        "rules": (read_rule_set, [*shipped("rules/paper.yaml"), *_json(RULES)]),
        "search agent": (lambda path: read_search_config(path, "operator"), shipped("search/paper.yaml")),
        "online agent": (read_online_agent, shipped("online/default.yaml")),
    }
    return {name: Target(valid, _file(read, "d.yaml"), change_json) for name, (read, valid) in readers.items()}


def _documents(profile: bytes) -> dict[str, Target]:
    from automap_models.core.placement import PlacementProblem
    from automap_models.formats.files import read_profile
    from automap_models.formats.observed_json import read_observed
    from automap_models.formats.placement_json import read_placement
    from automap_models.formats.placement_plan import read_placement_plan, read_split
    from automap_models.formats.plan_json import read_plan
    from automap_models.formats.sharding_json import read_sharding_plan

    with _folder(profile):
        _command("infer")(
            ["good.npz", "--topo", "topo.yaml", "--stages", "2", "--granularity", "12", "--out", "made.json"]
        )
        _command("place")(["graph.json", "--time-limit", "1", "--out", "placed.json"])
        plan, placed = Path("made.json").read_bytes(), Path("placed.json").read_bytes()
        whole, graph = read_profile("good.npz"), read_placement("graph.json")
    return {
        "times": Target(_json(TIMES, STAGE_TIMES, TRACE), _file(read_observed, "t.json"), change_json),
        "placement graph": Target(_json(PLACEMENT), _file(read_placement, "g.json"), change_json),
        "split": Target(
            _json(SPLIT), _file(lambda p: read_split(p, PlacementProblem.of(graph)), "s.json"), change_json
        ),
        "placement": Target([placed], _file(lambda path: read_placement_plan(path, graph), "p.json"), change_json),
        "plan": Target([plan], _file(lambda path: read_plan(path, whole), "p.json"), change_json),
        "sharding plan": Target(_json(SHARDING), _file(read_sharding_plan, "p.json"), change_json),
    }


def _data(_: bytes) -> dict[str, Target]:
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
        import hashlib

        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        Path("manifest.json").write_text(json.dumps({**manifest, "shards": [{**entry, "sha256": digest}]}))
        return read_dataset(path.parent)

    return {
        "manifest": Target(_json(manifest), _file(of_manifest, "manifest.json"), change_json),
        "shard": Target([content], _file(of_shard, "shard-00000.npz"), change_npz),
    }


COMMANDS: dict[str, list[list[str]]] = {
    "infer": [
        ["good.npz", "--topo", "topo.yaml", "--stages", "2", "--micro-batches", "4", "--granularity", "12"],
        ["good.npz", "--topo", "topo.yaml", "--plan", "plan.json"],
        ["good.npz", "--sweep", "sweep.yaml", "--planner", "uniform", "--refine-budget", "0"],
        ["graph.txt", "--topo", "topo.yaml", "--planner", "exact", "--json"],
        ["good.npz", "--topo", "topo.yaml", "--plan", "plan.json", "--observed", "times.json"],
    ],
    "plan": [["good.npz", "--topo", "topo.yaml", "--max-stages", "2", "--budget", "0.1", "--no-cache"]],
    "place": [
        ["graph.json", "--planner", "greedy"],
        ["graph.json", "--plan", "placement.json"],
        ["graph.json", "--devices", "2"],
    ],
    "profile": [["good.npz"], ["graph.txt", "-o", "p.npz"], ["graph.json", "--json"]],
    "search": [
        ["pp", "good.npz", "--topo", "topo.yaml", "--stages", "2", "--episodes", "20"],
        ["opp", "nothing.hlo", "--topo", "A"],
        ["adp", "x", "--topo", "A"],
    ],
}
SLOW_OPTIONS = frozenset({"--measure", "--device", "--thorough", "--plot"})
"""Options that begin work of their own: a device's clock, a picture."""


def _command(name: str) -> Callable[[list[str]], object]:
    from automap_models.infer import app

    program = getattr(app, name)

    def run(arguments: list[str]) -> object:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = program(arguments)
        if code not in (0, 2, 3) or "Traceback" in err.getvalue():
            raise AssertionError(f"exit code {code}: {err.getvalue()[-2000:]}")
        if code:
            from automap_models.errors import AutomapError

            raise AutomapError(err.getvalue())
        return code

    return run


@contextlib.contextmanager
def _folder(profile: bytes, plan: bytes = b"{}", placed: bytes = b"{}") -> Iterator[None]:
    """A folder with the files that arguments name, as the working folder."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            _lay_out(profile)
            Path("plan.json").write_bytes(plan)
            Path("placement.json").write_bytes(placed)
            yield
        finally:
            os.chdir(here)


def _lay_out(profile: bytes) -> None:
    Path("good.npz").write_bytes(profile)
    Path("graph.txt").write_bytes(GRAPH_TXT)
    for name, document in (("graph", PLACEMENT), ("times", TIMES)):
        Path(f"{name}.json").write_text(json.dumps(document))
    for name, document in (("topo", TOPO), ("sweep", SWEEP)):
        Path(f"{name}.yaml").write_text(json.dumps(document))


def _commands(profile: bytes) -> dict[str, Target]:
    with _folder(profile):
        _command("infer")(
            ["good.npz", "--topo", "topo.yaml", "--stages", "2", "--granularity", "12", "--out", "made.json"]
        )
        _command("place")(["graph.json", "--time-limit", "1", "--out", "placed.json"])
        plan, placed = Path("made.json").read_bytes(), Path("placed.json").read_bytes()

    def in_folder(name: str) -> Callable[[list[str]], object]:
        run = _command(name)

        def inside(arguments: list[str]) -> object:
            with _folder(profile, plan, placed):
                return run(arguments)

        return inside

    from automap_models.infer import app

    def options(name: str) -> tuple[list[str], list[str]]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            getattr(app, name)(["--help"])
        given = re.findall(r"^ +(?:-\w[^,]*, )?(--[a-z][a-z-]*)( [A-Z{]\S*)?", out.getvalue(), re.MULTILINE)
        valued = {option for option, value in given if value}
        return sorted({option for option, _ in given} - valued - SLOW_OPTIONS), sorted(valued - SLOW_OPTIONS)

    return {
        f"automap-{name}": Target(list(valid), in_folder(name), change_arguments(*options(name)))
        for name, valid in COMMANDS.items()
    }


GROUPS: dict[Callable[[bytes], dict[str, Target]], tuple[str, ...]] = {
    _profiles: ("npz", "graph.txt", "piper", "placement graph as profile"),
    _descriptions: ("cluster", "device", "sweep", "rules", "search agent", "online agent"),
    _documents: (*("times", "placement graph", "split", "placement", "plan", "sharding plan"),),
    _data: ("manifest", "shard"),
    _commands: tuple(f"automap-{name}" for name in COMMANDS),
}
NAMES = tuple(name for names in GROUPS.values() for name in names)


# --- running -------------------------------------------------------------------------------------------------------


def case(target: Target, name: str, seed: int, number: int) -> Content:
    """The case that (target, seed, number) decide."""
    random_ = random.Random(f"{name} {seed} {number}")
    valid = random_.choice(target.valid)
    return valid if number == 0 else target.change(random_, valid)


def run_case(target: Target, content: Content) -> str:
    """Run a case: "result" or "refused".

    Raises:
        Exception: what the reader or the command raised, if that was no AutomapError.
    """
    from automap_models.errors import AutomapError

    try:
        target.run(content)
    except AutomapError as error:
        sentence = str(error).strip()
        assert sentence, "refused without a sentence"
        return "refused"
    return "result"


def _too_long(signal_number: int, frame: FrameType | None) -> None:
    raise TooLongError(f"more than {LONGEST_S:g} s of processor time")


def child(names: list[str], seed: int, first: int, count: int, folder: Path) -> None:
    """Run cases in this process, whose memory is bounded; print a line of JSON a target and a failure."""
    ready = [(name, target_named(name)) for name in names]
    resource.setrlimit(resource.RLIMIT_DATA, (LARGEST_BYTES, LARGEST_BYTES))
    signal.signal(signal.SIGPROF, _too_long)
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        for name, target in ready:
            print(
                json.dumps({"target": name, "refused": _run_cases(name, target, seed, first, count, folder)}),
                flush=True,
            )


def _run_cases(name: str, target: Target, seed: int, first: int, count: int, folder: Path) -> int:
    refused = 0
    cases = ((f"{seed}-{number}", case(target, name, seed, number)) for number in range(first, first + count))
    for label, content in itertools.chain(kept_cases(name) if first == 0 else (), cases):
        keep(folder / "current", content)
        faulthandler.dump_traceback_later(LONGEST_WAIT_S, exit=True)  # also of code that no signal interrupts
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        try:
            refused += run_case(target, content) == "refused"
        except (Exception, TooLongError):
            signal.setitimer(signal.ITIMER_PROF, 0)
            keep(folder / f"{name}-{label}", content)
            error = traceback.format_exc()[-1500:]
            print(json.dumps({"target": name, "case": label, "error": error}), flush=True)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.cancel_dump_traceback_later()
    return refused


def keep(path: Path, content: Content) -> None:
    """Write a case into a file: bytes as they are, arguments as JSON."""
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def kept_cases(name: str) -> list[tuple[str, Content]]:
    """The cases of a target that once failed: file names and contents."""
    files = sorted((KEPT / name.replace(" ", "_")).glob("*"))
    arguments = name.startswith("automap-")
    return [(file.name, json.loads(file.read_bytes()) if arguments else file.read_bytes()) for file in files]


def fuzz(names: Sequence[str], cases: int, seed: int, folder: Path) -> dict[str, Outcome]:
    """Run the cases of some targets in child processes, none of them for more than CASES_A_CHILD of each target.

    Args:
        names: of the targets.
        cases: of each, besides those that are kept.
        seed: of the cases.
        folder: where cases that fail are written.
    """
    outcomes = {name: Outcome() for name in names}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HOME": str(folder)}
    for first in range(0, cases, CASES_A_CHILD):
        count = min(CASES_A_CHILD, cases - first)
        command = [sys.executable, __file__, "--child", ",".join(names), str(first), str(count), str(folder)]
        command += ["--seed", str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"target"')]
        for line in lines:
            outcome = outcomes[line["target"]]
            if "error" in line:
                outcome.failures.append(f"{line['target']}, case {line['case']}: {line['error']}")
            else:
                outcome.cases += count
                outcome.refused += line["refused"]
        missing = [name for name in names if not any(line["target"] == name and "refused" in line for line in lines)]
        if missing:  # the first of them killed the child
            current = (folder / "current").read_bytes()[:300] if (folder / "current").exists() else b""
            why = f"{missing[0]}: the child ended with {done.returncode} in {current!r}: {done.stderr[-1500:]}"
            outcomes[missing[0]].failures.append(why)
    return outcomes


def main() -> int:
    """Run the program; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2_000, help="of each target")
    parser.add_argument("--target", action="append", help="only this one; may be given several times")
    parser.add_argument("--seed", type=int, default=0, help="of the cases")
    parser.add_argument("--keep", type=Path, default=Path("fuzz_failures"), help="folder for the cases that fail")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        names, first, count, folder = arguments.child
        child(names.split(","), arguments.seed, int(first), int(count), Path(folder))
        return 0
    arguments.keep.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in arguments.target or NAMES:
        began = time.monotonic()
        outcome = fuzz([name], arguments.cases, arguments.seed, arguments.keep.resolve())[name]
        counts = f"{outcome.cases:,} cases, {outcome.refused:,} refused, {len(outcome.failures)} failed"
        print(f"{name}: {counts}, {time.monotonic() - began:.0f} s")
        for failure in outcome.failures[:20]:
            print(f"  {failure}")
        sys.stdout.flush()
        failed += len(outcome.failures)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
