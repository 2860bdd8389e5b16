"""Runs the cases of targets in child processes and counts what came of them; see tests/fuzz.py."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from .cases import Call, Case, Target
from .targets import CALLED, NAMES, prepared

PROGRAM = Path(__file__).resolve().parents[1] / "fuzz.py"
CASE_FOLDER = PROGRAM.with_name("fuzz_cases")
LARGEST_BYTES = 1 << 30
"""What a case may take besides what its target takes before the first."""
LONGEST_S = 30.0
"""Processor time of a case, so that a busy machine fails none. On a slow one the longest kept case takes 11 s, 70,000
operations of the rounds of two loops; before the defect that it was kept for was mended it took two minutes."""
LONGEST_WAIT_S = 120.0
"""Time by the clock after which a case waits for something that does not come."""
CASES_A_CHILD = 2_000
CURRENT = "current"
"""File with the case that runs, in the folder of the child's temporary files."""
MEMORY = Path("/dev/shm")
"""A file system in memory, where there is one: a case writes several files, and many of them take longer than it."""


@dataclass
class Outcome:
    """What came out of a target's cases: how many ran, were refused and failed, and the processor time they took."""

    cases: int = 0
    refused: int = 0
    taken_s: float = 0.0
    failures: list[str] = field(default_factory=list)


class TooLongError(BaseException):
    """A case takes more than LONGEST_S of processor time."""


def case(target: Target, name: str, seed: int, number: int) -> Case:
    """The case that (target, seed, number) decide."""
    random_ = random.Random(f"{name} {seed} {number}")
    valid: Case = random_.choice(target.valid)
    return valid if number == 0 else target.change(random_, valid)


def run_case(target: Target, content: Case) -> str:
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


# --- inside a child ------------------------------------------------------------------------------------------------


def child(names: Sequence[str], seed: int, first: int, count: int, folder: Path) -> None:
    """Run cases in this process, whose memory is bounded; print a line of JSON a target and a failure."""
    lines = os.fdopen(os.dup(1), "w")  # targets may print
    os.dup2(2, 1)
    targets = prepared(names)
    gc.collect()
    gc.freeze()  # what was imported stays to the end: collections of garbage pass over it
    largest = LARGEST_BYTES + _data_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (largest, largest))
    signal.signal(signal.SIGPROF, _too_long)
    # The end of LONGEST_WAIT_S prints where the case waits and ends the child, also in code that Python's own handlers
    # do not interrupt. A timer of the system starts no thread, which `faulthandler.dump_traceback_later` does a case.
    faulthandler.register(signal.SIGALRM, chain=True)
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        for name, target in targets.items():
            print(json.dumps(_run_cases(name, target, seed, first, count, folder, lines)), file=lines, flush=True)


def _data_bytes() -> int:
    """What RLIMIT_DATA counts of this process by now: libraries set much aside that they never use."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))


def _too_long(signal_number: int, frame: FrameType | None) -> None:
    raise TooLongError(f"more than {LONGEST_S:g} s of processor time")


def _run_cases(
    name: str, target: Target, seed: int, first: int, count: int, folder: Path, lines: object
) -> dict[str, object]:
    """Run a target's cases and those kept of it; how many ran, and how many of them were refused."""
    refused = ran = 0
    current = Path(tempfile.gettempdir(), CURRENT)
    begun_s = time.process_time()
    numbers = range(int(first * target.share), int((first + count) * target.share))
    cases = ((f"{seed}-{number}", case(target, name, seed, number)) for number in numbers)
    for label, content in itertools.chain(kept_cases(name) if first == 0 else (), cases):
        keep(current, content)
        signal.setitimer(signal.ITIMER_REAL, LONGEST_WAIT_S)
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        ran += 1
        try:
            refused += run_case(target, content) == "refused"
        except (Exception, TooLongError):
            signal.setitimer(signal.ITIMER_PROF, 0)
            keep(folder / f"{name}-{label}", content)
            error = traceback.format_exc()[-1500:]
            print(json.dumps({"target": name, "case": label, "error": error}), file=lines, flush=True)  # type: ignore[call-overload]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
    return {"target": name, "cases": ran, "refused": refused, "taken_s": time.process_time() - begun_s}


def keep(path: Path, content: Case) -> None:
    """Write a case into a file: bytes as they are, a call as JSON, whose texts have a character for each byte."""
    if isinstance(content, Call):
        files = {name: data.decode("latin-1") for name, data in content.files.items()}
        content = json.dumps({"arguments": list(content.arguments), "files": files}).encode()
    path.write_bytes(content)


def read_case(path: Path, name: str) -> Case:
    """The case of a target in a file."""
    if name not in CALLED:
        return path.read_bytes()
    document = json.loads(path.read_bytes())
    return Call(document["arguments"], {name: text.encode("latin-1") for name, text in document["files"].items()})


def kept_cases(name: str) -> list[tuple[str, Case]]:
    """The cases of a target that once failed: file names and contents."""
    return [(path.name, read_case(path, name)) for path in sorted((CASE_FOLDER / name.replace(" ", "_")).glob("*"))]


# --- outside -------------------------------------------------------------------------------------------------------


def fuzz(names: Sequence[str], cases: int, seed: int, folder: Path) -> dict[str, Outcome]:
    """Run the cases of some targets in child processes, none of them for more than CASES_A_CHILD of each target.

    Args:
        names: of the targets.
        cases: of each, besides those that are kept.
        seed: of the cases.
        folder: where cases that fail are written.
    """
    outcomes = {name: Outcome() for name in names}
    for first in range(0, cases, CASES_A_CHILD):
        count = min(CASES_A_CHILD, cases - first)
        command = [sys.executable, str(PROGRAM), "--seed", str(seed)]
        command += ["--child", ",".join(names), str(first), str(count), str(folder)]
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as home:
            threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
            environment = {**os.environ, **threads, "HOME": home, "AUTOMAP_CACHE": home, "JAX_PLATFORMS": "cpu"}
            environment["TMPDIR"] = home
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            ended = _reported(done.stdout, outcomes)
            missing = [name for name in names if name not in ended]
            if missing:  # the first of them killed the child
                outcomes[missing[0]].failures.append(_death(missing[0], done, Path(home, CURRENT), folder))
    return outcomes


def _reported(lines: str, outcomes: dict[str, Outcome]) -> set[str]:
    """Add what a child printed to the outcomes; the targets whose cases all ran."""
    ended = set()
    for line in map(json.loads, lines.splitlines()):
        outcome = outcomes[line["target"]]
        if "error" in line:
            outcome.failures.append(f"{line['target']}, case {line['case']}: {line['error']}")
        else:
            ended.add(line["target"])
            outcome.cases += line["cases"]
            outcome.refused += line["refused"]
            outcome.taken_s += line["taken_s"]
    return ended


def _death(name: str, done: subprocess.CompletedProcess[str], current: Path, folder: Path) -> str:
    """What is known of the end of a child; the case in which it ended is kept."""
    if not current.exists():
        return f"{name}: the child ended with {done.returncode} before the first case: {done.stderr[-1500:]}"
    copy = folder / f"{name}-fatal-{time.time_ns()}"
    copy.write_bytes(current.read_bytes())
    return f"{name}: the child ended with {done.returncode} in {copy.name}: {done.stderr[-1500:]}"


def main() -> int:
    """Run the program; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="fuzz.py", description="Damaged files and random arguments for all targets.")
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
        outcome = fuzz([name], arguments.cases, arguments.seed, arguments.keep.resolve())[name]
        counts = f"{outcome.cases:9,} cases, {outcome.refused:9,} refused, {len(outcome.failures):3} failed"
        print(f"{name:26} {counts}, {outcome.taken_s:7,.0f} s")
        for failure in outcome.failures[:20]:
            print(f"  {failure}")
        sys.stdout.flush()
        failed += len(outcome.failures)
    return int(failed > 0)
