"""Damaged files and random arguments for every reader and every command: each ends in a result or in one sentence.

    python tests/fuzz.py --cases 1000000                      every target
    python tests/fuzz.py --cases 5000 --target sweep --seed 7 one target, other cases

A case is a valid file, or a valid call of a command with its files, changed at random by a generator that (target,
seed, number) decide. It runs inside a child process, many to a child, which may hold 1 GB; a case that raises anything
but an AutomapError, that returns an exit code other than 0, 2 and 3, that is refused and leaves a file, that takes more
than 30 s of processor time or that kills the child is a failure. Failures are printed with the case that made them; the
file or the call goes to a folder, and a case that was fixed belongs into tests/fuzz_cases, which is replayed first.
"""

import sys

from fuzzing.runner import main

if __name__ == "__main__":
    sys.exit(main())
