"""Every command for people, with its arguments and files."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from . import samples
from .call_mutations import change_call, change_options
from .cases import Call, Target
from .shortcuts import ReachedError, without_processes

COMMANDS: Mapping[str, Sequence[Sequence[str]]] = {
    "calibrate": [
        ["steps.json", "--device", "a100", "--out", "out.yaml"],
        ["steps.json", "--device", "a100", "--also", "h100", "--json"],
    ],
    "models": [["qwen3", "--json"], ["--families"]],
    "infer": [
        ["good.npz", "--topo", "topo.yaml", "--stages", "2", "--micro-batches", "4", "--granularity", "12"],
        ["good.npz", "--topo", "topo.yaml", "--plan", "plan.json"],
        ["good.npz", "--topo", "mixed.yaml", "--stages", "2", "--granularity", "12"],
        ["good.npz", "--sweep", "sweep.yaml", "--planner", "uniform", "--refine-budget", "0"],
        ["graph.txt", "--topo", "topo.yaml", "--planner", "exact", "--json"],
        ["good.npz", "--topo", "topo.yaml", "--plan", "plan.json", "--observed", "times.json"],
        ["good.npz", "--plan", "plan.json", "--observed", "trace.json", "--corrected", "out.npz"],
        ["good.npz", "--topo", "topo.yaml", "--policy", "policy.onnx", "--granularity", "16", "--stages", "2"],
        ["piper.json", "--topo", "topo.yaml", "--out", "out.json", "--trace", "out-trace.json"],
    ],
    "plan": [
        ["good.npz", "--topo", "topo.yaml", "--max-stages", "2", "--budget", "0.1", "--no-cache"],
        ["good.npz", "--topo", "topo.yaml", "--plan", "plan.json"],
        ["step.mlir", "--topo", "topo.yaml", "--budget", "0.1", "--pin", "while=0", "--json"],
        ["step.mlir", "--topo", "topo.yaml", "--plan", "hybrid.json"],
        ["good.npz", "--topo", "topo.yaml", "--keep-together", "op1*", "--forbid", "data", "--budget", "0.1"],
    ],
    "fit": [
        ["good.npz", "--topo", "topo.yaml", "--budget", "0.1"],
        ["good.npz", "--topo", "topo.yaml", "--memory", "1 MB", "--pp", "2", "--json"],
    ],
    "doctor": [
        ["train.sh", "--device", "h100"],
        ["titan.toml", "--model", "small.json", "--gpus", "2xh100", "--json"],
        ["accelerate.yaml", "--model", "small.json", "--device", "a100", "--micro-batch", "2", "--sequence", "16"],
        ["zero.json", "--model", "small.json", "--gpus", "2xa100", "--recompute", "full", "--ignore", "all"],
        ["tune.yaml", "--model", "small.json", "--gpus", "2xh100"],
        ["factory.yaml", "--model", "small.json", "--gpus", "2xh100", "--json"],
        ["bridge.yaml", "--model", "small.json", "--gpus", "4xh100", "--ignore", "all"],
        ["verl.sh", "--model", "small.json", "--device", "h100"],
    ],
    "export": [
        ["plan.json", "--to", "torch-csv"],
        ["plan.json", "good.npz", "--to", "galvatron", "--snap"],
        ["strategy.json", "--to", "megatron", "--out", "out.json"],
        ["strategy.json", "--to", "megatron", "--launch", "jobset", "--topo", "topo.yaml"],
        ["strategy.json", "--to", "deepspeed", "--launch", "skypilot", "--topo", "topo.yaml", "--out", "out.json"],
        ["shardings.json", "--to", "jax"],
        ["hybrid.json", "step.mlir", "--to", "jax", "--json"],
    ],
    "place": [
        ["graph.json", "--planner", "ideals"],
        ["graph.json", "--plan", "placement.json"],
        ["graph.json", "--devices", "2", "--time-limit", "1"],
        ["graph.json", "--planner", "expert", "--split", "split.json"],
        ["step.hlo", "--devices", "2", "--planner", "ideals", "--accelerator", "device.yaml", "--out", "out.json"],
    ],
    "profile": [
        ["good.npz"],
        ["graph.txt", "-o", "p.npz"],
        ["graph.json", "--json"],
        ["step.hlo", "-o", "p.npz", "--device", "device.yaml"],
        ["step.mlir", "--show", "--instructions"],
    ],
    "run": [
        ["stages.json", "small:torch_model"],
        ["stages.json", "small:torch_model", "--schedule", "gpipe", "--steps", "1", "--check", "-o", "out.json"],
        ["hybrid.json", "small:jax_model", "--json"],
    ],
    "search": [
        ["pp", "good.npz", "--topo", "topo.yaml", "--stages", "2", "--agent", "online.yaml", "--episodes", "5"],
        ["pp", "good.npz", "--topo", "topo.yaml", "--warm-start", "plan.json", "--episodes", "5"],
        ["opp", "step.mlir", "--topo", "topo.yaml", "--rules", "rules.yaml"],
        ["opp", "step.mlir", "--topo", "topo.yaml", "--plan", "shardings.json"],
        ["adp", "step.hlo", "--topo", "topo.yaml", "--mesh", "2"],
        ["opp", "step.mlir", "--topo", "A", "--objective", "count", "--agent", "agent.yaml", "--episodes", "5"],
    ],
}
SLOW_OPTIONS = frozenset({"--measure", "--thorough", "--plot", "--verify", "--check"})
"""Options that begin work of their own: a device's clock, a picture, a training, another process."""


def infer_files() -> dict[str, bytes]:
    return {
        "good.npz": samples.profile(),
        "graph.txt": samples.GRAPH_TXT,
        "piper.json": samples.as_json(samples.PIPER),
        "topo.yaml": samples.as_json(samples.TOPO),
        "mixed.yaml": samples.as_json(samples.MIXED),
        "sweep.yaml": samples.as_json(samples.SWEEP),
        "times.json": samples.as_json(samples.TIMES),
        "trace.json": samples.as_json(samples.TRACE),
    }


def place_files() -> dict[str, bytes]:
    return {"graph.json": samples.as_json(samples.PLACEMENT), "split.json": samples.as_json(samples.SPLIT)}


def _step_files() -> dict[str, bytes]:
    names = {"device": "device/v100", "rules": "rules/paper", "agent": "search/paper", "online": "agent/default"}
    described = {f"{name}.yaml": samples.shipped_as_json(f"{source}.yaml") for name, source in names.items()}
    return {name: samples.step()[name] for name in ("step.hlo", "step.mlir")} | described


def plans() -> tuple[bytes, bytes]:
    """A pipeline of good.npz and a placement of graph.json."""
    with in_folder(infer_files() | place_files()):
        call("infer", ["good.npz", "--topo", "topo.yaml", "--stages", "2", "--granularity", "12", "--out", "new.json"])
        call("place", ["graph.json", "--time-limit", "1", "--out", "placed.json"])
        return Path("new.json").read_bytes(), Path("placed.json").read_bytes()


def _files() -> dict[str, bytes]:
    """All files that arguments name."""
    plan, placed = plans()
    files = {
        **(infer_files() | place_files() | _step_files()),
        "small.py": samples.SMALL_MODELS,
        "small.json": samples.as_json(samples.CONFIGS[0]),
        **samples.OF_OTHERS,
        "strategy.json": samples.as_json(samples.STRATEGY),
        "steps.json": samples.as_json(samples.MEASURED_STEPS),
        **{"plan.json": plan, "placement.json": placed, "policy.onnx": samples.tiny_policy()},
    }
    step = ["step.mlir", "--topo", "topo.yaml"]
    with in_folder(files):
        call("plan", [*step, "--forbid", "data", "--forbid", "pipeline", "--budget", "0.1", "--out", "new.json"])
        call("search", ["opp", *step, "--out", "new-shardings.json"])
        call("profile", ["small:torch_model", "-o", "small.npz"])
        two = ["--stages", "2", "--micro-batches", "2"]
        call("infer", ["small.npz", "--topo", "topo.yaml", *two, "--out", "new-stages.json"])
        names = {"hybrid": "new", "shardings": "new-shardings", "stages": "new-stages"}
        outputs = {f"{name}.json": Path(f"{file}.json") for name, file in names.items()}
        return files | {name: path.read_bytes() for name, path in outputs.items()}


@contextlib.contextmanager
def in_folder(files: Mapping[str, bytes]) -> Iterator[set[Path]]:
    """A folder with these files as the working folder; their paths."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for name, content in files.items():
                Path(name).parent.mkdir(exist_ok=True)
                Path(name).write_bytes(content)
            yield entries()
        finally:
            os.chdir(here)


def entries() -> set[Path]:
    return set(Path().rglob("*"))


def call(name: str, arguments: list[str]) -> None:
    """Run a command for people in the working folder.

    Raises:
        AutomapError: it refuses in one line, and leaves no file.
        AssertionError: it ends in any other way.
    """
    from automap_models.infer import app

    before = entries()
    # A terminal of another century: what it cannot show has to be escaped.
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(ReachedError):
        code = app.main(arguments) if name == "automap" else getattr(app, name)(arguments)
    answered = code == 3 and name.endswith(("fit", "doctor"))  # that nothing fits is its answer
    judge(0 if answered else code, err, entries() - before)


def judge(code: int, err: io.TextIOWrapper, written: set[Path]) -> None:
    """What an exit code and the lines on standard error mean."""
    from automap_models.errors import AutomapError

    err.flush()
    message = err.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined]
    if code not in (0, 2, 3) or "Traceback" in message:
        raise AssertionError(f"exit code {code}: {message[-2000:]}")
    if any(path.name.endswith(".tmp") for path in written) or (code and written):
        raise AssertionError(f"exit code {code}, but there are {sorted(map(str, written))}")
    if code:
        sentence = message.strip().splitlines()[-1] if message.strip() else ""
        raise AutomapError(sentence)


def _options(name: str) -> tuple[list[str], list[str]]:
    """Options of a command without a value and with one, by its help."""
    from automap_models.infer import app

    texts = []
    for arguments in [["--help"]] if name != "search" else [["opp", "--help"], ["pp", "--help"]]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            getattr(app, name)(arguments)
        texts.append(out.getvalue())
    options = re.findall(r"^ +(?:-\w[^,]*, )?(--[a-z][a-z-]*)( [A-Z{]\S*)?", "\n".join(texts), re.MULTILINE)
    valued = {option for option, value in options if value}
    return sorted({option for option, _ in options} - valued - SLOW_OPTIONS), sorted(valued - SLOW_OPTIONS)


def _brief(name: str, arguments: list[str]) -> list[str]:
    """The arguments; a search that lost its budget gets one, as its own default is longer than a case may take."""
    searches = name == "plan" or (name == "automap" and arguments[:1] == ["plan"])
    if searches and not any(argument.startswith(("--budget", "--plan")) for argument in arguments):
        return [*arguments, "--budget", "0.1"]
    return arguments


def commands() -> dict[str, Target]:
    """Every command for people under its own name, and the one program that they are parts of."""
    files = _files()
    shortcuts = {"run": without_processes, "automap": without_processes}

    def within(name: str) -> Callable[[Call], object]:
        shortened = shortcuts.get(name, contextlib.nullcontext)

        def run(case: Call) -> object:
            with in_folder(files | dict(case.files)), shortened():
                return call(name, _brief(name, list(case.arguments)))

        return run

    targets, all_options = {}, ([], [])  # type: dict[str, Target], tuple[list[str], list[str]]
    for name, valid in COMMANDS.items():
        options = _options(name)
        for names, names_of_command in zip(all_options, options, strict=True):
            names.extend(names_of_command)
        change = change_call(files, change_options(*options))
        calls = [Call(arguments) for arguments in valid]
        targets[f"automap-{name}"] = Target(calls, within(name), change)
    calls = [Call([name, *arguments]) for name, valid in COMMANDS.items() for arguments in valid[:1]]
    change = change_call(files, change_options(*all_options))
    targets["automap"] = Target([*calls, Call(["--version"]), Call([])], within("automap"), change)
    return targets
