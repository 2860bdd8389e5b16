"""What several benchmarks share: files that are not in the repository, clocks, drawn problems, and their optima.

Some benchmarks need files that are not part of the repository. Without them they print one sentence and end with exit
code 2, so that `make bench` goes on with the next.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np
from hydra import compose, initialize_config_dir
from rich.console import Console
from rich.progress import track

from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.datagen.command import job_from
from automap_models.datagen.generate import draw_groups
from automap_models.envs.pipeline.encoding import EncodedProblems, decode
from automap_models.errors import BadInput, Infeasible
from automap_models.planners.base import Deadline
from automap_models.planners.staged.search import ExactPlanner
from automap_models.resources import conf_dir

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
CLUSTERS = ("A", "B", "C", "p4d-4", "dgx-h100-4")
"""On which the command is tried."""
MEASURED_PROFILES = "profiles measured on V100 by PipeDream and DAPPLE (NAME.txt)"
PLACEMENT_GRAPHS = "graphs of the dnn-partitioning artifact"


def refuse(sentence: str) -> NoReturn:
    """Say in one sentence what is missing, and end with exit code 2."""
    print(f"{Path(sys.argv[0]).name}: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def files_of(folder: Path | None, option: str, what: str, patterns: Iterable[str]) -> list[Path]:
    """Files of a folder that is not part of the repository, pattern by pattern; each has to match some."""
    if folder is None:
        refuse(f"this needs {what}, which are not part of the repository: give {option}")
    paths: list[Path] = []
    for pattern in patterns:
        matches = sorted(folder.glob(pattern))
        if not matches:
            refuse(f"this needs {what}, and {folder} holds no {pattern}: give {option}")
        paths += matches
    return paths


def require_commit(clone: Path, commit: str, what: str) -> None:
    """End with one sentence where a clone is at another commit than the benchmark knows."""
    git = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    head = subprocess.run(git, check=False, capture_output=True, text=True).stdout.strip() or "no commit"
    if head != commit:
        refuse(f"this knows {what} at commit {commit}, and {clone} is at {head}: check that commit out")


def run_command(name: str, *arguments: str) -> tuple[float, int, str]:
    """Run a command as a process of its own: its processor time in seconds, its exit code, and what it prints."""
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # whoever has this compiles every module in every run
    program = f"import sys; from automap_models.infer.app import {name}; sys.exit({name}())"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, done.returncode, done.stdout


def print_rows(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[Sequence[str]]:
    """Print a Markdown table, each row as soon as it is known; the rows. Bad input ends it with one sentence."""
    printed = []
    print(f"| {' | '.join(headings)} |\n|{'---|' * len(headings)}", flush=True)
    try:
        for row in rows:
            printed.append(row)
            print(f"| {' | '.join(row)} |", flush=True)
    except BadInput as error:
        refuse(str(error))
    return printed


def add_profiles(parser: argparse.ArgumentParser) -> None:
    """The option for profiles beside those in examples/."""
    parser.add_argument("--profiles", type=Path, default=None, help=f"folder of further {MEASURED_PROFILES}")


def profile_files(folder: Path | None) -> list[Path]:
    """The profiles in examples/, and those of a further folder where one is given."""
    further = files_of(folder, "--profiles FOLDER", MEASURED_PROFILES, ("*.txt",)) if folder else []
    return [*sorted(EXAMPLES.glob("*.npz")), *further]


def processor_time(budget_s: float = float("inf")) -> Deadline:
    """A deadline by processor time, its parts included: what else runs on the machine does not count."""
    return Deadline(budget_s, time.process_time)


def tracked(items: Sequence[T], what: str) -> Iterable[T]:
    """Items one by one, with a bar on stderr of how many are done."""
    return track(items, what, console=Console(stderr=True), transient=True)


def timed(run: Callable[[], T]) -> tuple[T, float]:
    """What a call returns, and its processor time in seconds."""
    start = time.process_time()
    result = run()
    return result, time.process_time() - start


def optimum_s(problem: StagedProblem) -> float:
    """L*, the exact planner's on the grid; NaN where nothing fits."""
    try:
        return plan_cost(problem, ExactPlanner().plan(problem)).length_s
    except Infeasible:
        return float("nan")


def fresh_problems(count: int, seed: int) -> list[StagedProblem]:
    """Problems of the training mix on A, B and C, drawn as data sets are."""
    overrides = "dist=mixed", "out=unused", f"seed={seed}", "problem.cluster.fixed_share=1"
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        recipe = job_from(compose("datagen", [*overrides])).recipe
    encoded = EncodedProblems.from_mapping(draw_groups(recipe, np.random.default_rng(seed), count))
    return [decode(encoded, i) for i in range(count)]
