"""The first question of a new user: `automap fit MODEL --gpus G`, no other option, and the answer of `automap plan`.

    OMP_NUM_THREADS=1 python benchmarks/fit.py [--quick]

Each command runs as a process of its own, for every one of MODELS on every one of GPUS. A row has the verdict, the step
of the best strategy that the short search comes to, the share of the peak that goes into the model's products, the
least change that is named, how many times as long as the strategy of `automap plan` the step is (not with --quick),
and the processor time of `fit`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import product

import numpy as np
from common import print_rows, run_command

MODELS = (
    *("llama3-8b", "llama3-70b", "llama3-405b", "gpt3-175b", "qwen3-32b", "gemma3-27b"),
    *("mixtral-8x7b", "mixtral-8x22b", "qwen3-30b-a3b", "deepseek-v3"),
)
GPUS = ("16xh100", "64xh100", "256xh100", "64xa100", "32xv100", "128xb200")
HEADINGS = ("model", "cluster", "verdict", "step", "MFU", "least change", "over plan", "cpu")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave `automap plan` out")
    arguments = parser.parse_args()
    run_command("fit", "llama3-8b", "--gpus", "8xh100")  # whatever is not compiled yet
    taken_s: list[float] = []
    ratios: list[float] = []

    def rows() -> Iterator[tuple[str, ...]]:
        for model, gpus in product(MODELS, GPUS):
            cpu_s, _, printed = run_command("fit", model, "--gpus", gpus, "--json")
            answer = json.loads(printed)
            best, changes = answer["best"] or {}, answer["remedies"]
            taken_s.append(cpu_s)
            if best and not arguments.quick:
                _, code, printed = run_command("plan", model, "--gpus", gpus, "--json")
                ratios.extend([best["step_s"] / json.loads(printed)["step_s"]] if code == 0 else [])
            yield (
                *(model, gpus, answer["verdict"], f"{best['step_s']:.4g} s" if best else ""),
                *(f"{100 * best['mfu']:.1f} %" if best else "", changes[0]["change"] if changes else ""),
                *(f"{ratios[-1]:.3f}" if best and not arguments.quick else "", f"{cpu_s:.2f} s"),
            )

    print_rows(HEADINGS, rows())
    times = np.array(taken_s)
    within = f"{np.sum(times <= 2)} of {times.size} at most 2 s"
    print(f"\nprocessor time: mean {times.mean():.2f} s, worst {times.max():.2f} s, {within}")
    if ratios:
        logarithms = np.log(ratios)
        print(f"step over that of plan: geometric mean {np.exp(logarithms.mean()):.3f}, worst {max(ratios):.3f}")


if __name__ == "__main__":
    main()
