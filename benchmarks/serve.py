"""How soon the page of `automap serve` has the numbers of a field that is moved, and what it weighs.

Questions are those of people who move one field after the other, on a server of its own in another process; nothing is
cached of a price. A user asks again as soon as the answer is there, or after a pause.

    python benchmarks/serve.py
    python benchmarks/serve.py --questions 10000
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from common import ROOT, print_rows

MODELS = (("llama3-8b", "32xh100"), ("llama3-70b", "64xh100"), ("deepseek-v3", "256xh100"), ("t5_11b", "p4d-4"))
MOVES = {
    "tp": (1, 2, 4, 8),
    "pp": (1, 2, 4),
    "micro_batch": (1, 2, 4),
    "zero": (0, 1, 3),
    "recompute": ("none", "full"),
}
ALONE = 400
"""Questions of a user who is alone."""
PLOTS = ("uplot/uPlot.iife.min.js", "uplot/uPlot.min.css")
PAGE = ("", "app.js", "draw.js", "style.css", *PLOTS, "api/models", "api/clusters")
"""What is loaded before the first question."""
RUN = "import sys; from automap_models.infer.app import main; sys.exit(main(['serve', '--port', '0', '--json']))"


@contextmanager
def served() -> Iterator[tuple[str, int]]:
    """Where a server of its own listens, which has priced once, and its process."""
    with subprocess.Popen([sys.executable, "-c", RUN], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["address"]
        try:
            host = str(urlsplit(address).netloc)
            for model, cluster in MODELS:
                answered(HTTPConnection(host, timeout=300), {"model": model, "cluster": cluster})
            yield host, process.pid
        finally:
            process.terminate()


def answered(connection: HTTPConnection, question: dict[str, object]) -> tuple[float, int]:
    """Seconds until the answer is there, and its status."""
    begun = time.perf_counter()
    connection.request("POST", "/api/price", json.dumps(question), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    reply.read()
    return time.perf_counter() - begun, reply.status


def moved(host: str, count: int, pause_s: float, seed: int) -> list[tuple[float, int]]:
    """One user, who moves fields of a strategy one by one."""
    draws, connection = random.Random(seed), HTTPConnection(host, timeout=300)
    model, cluster = MODELS[seed % len(MODELS)]
    question: dict[str, object] = {"model": model, "cluster": cluster}
    answers = []
    for _ in range(count):
        name = draws.choice([*MOVES])
        question[name] = draws.choice(MOVES[name])
        answers.append(answered(connection, question))
        time.sleep(draws.uniform(0.0, 2.0 * pause_s))
    return answers


def spent_s(process: int) -> float:
    """Seconds of the processor that a process of Linux has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(process: int) -> int:
    """The most memory that a process of Linux has held."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10


def row(host: str, process: int, users: int, questions: int, pause_s: float) -> tuple[str, ...]:
    """Users at once, who together ask so many questions."""
    user, before_s = partial(moved, host, questions // users, pause_s), spent_s(process)
    with ThreadPoolExecutor(users) as pool:
        answers = [answer for of_user in pool.map(user, range(users)) for answer in of_user]
    times_ms = [1e3 * taken_s for taken_s, _ in answers]
    defects = sum(status >= 500 for _, status in answers)
    shares = [f"{np.percentile(times_ms, q):.0f} ms" for q in (50, 95, 99)]
    each_ms = 1e3 * (spent_s(process) - before_s) / len(answers)
    return (str(users), f"{pause_s:g} s", f"{len(answers):,}", *shares, f"{each_ms:.1f} ms", str(defects))


def weight_bytes(host: str) -> int:
    """Of the page and of what it lists."""
    total, connection = 0, HTTPConnection(host, timeout=300)
    for path in PAGE:
        connection.request("GET", f"/{path}")
        total += len(connection.getresponse().read())
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=ALONE, help="of twenty users together")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds from an answer to a question, mean")
    arguments = parser.parse_args()
    with served() as (host, process):
        heads = ("users", "pause", "questions", "median", "p95", "p99", "processor", "defects")
        rows = ((1, ALONE, 0.0), (20, arguments.questions, arguments.pause))
        print_rows(heads, (row(host, process, *users) for users in rows))
        weight_kb, held_mb = weight_bytes(host) / 1e3, peak_bytes(process) / 1e6
        print(f"\nThe page weighs {weight_kb:.0f} KB, and the server held {held_mb:.0f} MB.")


if __name__ == "__main__":
    main()
