"""Workers end together, say why, and leave nobody behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from ended_processes import gone

pytest.importorskip("torch")
TESTS = Path(__file__).resolve().parents[1]

PROGRAM = """
import json, sys, time
from automap_models.errors import RunFailed
from automap_models.run.workers import Workers
sys.path.insert(0, {tests!r})

if __name__ == "__main__":
    import workers_duties as duties
    start = time.monotonic()
    with Workers(3) as workers:
        print(json.dumps([pid for _, pid in workers.run(duties.rank_and_pid)]), flush=True)
        try:
            workers.run(duties.fail_in, 1, {how!r})
        except RunFailed as error:
            print(json.dumps([str(error), error.details, time.monotonic() - start]), flush=True)
"""


def start(tmp_path: Path, how: str) -> subprocess.Popen[str]:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(tests=str(TESTS), how=how)))
    return subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("how", "ending", "details"),
    [
        pytest.param("raises", "process 1: raised the error above", "ValueError: what the culprit says"),
        pytest.param("killed", "process 1: was killed by SIGKILL; SIGKILL is what Linux sends for lack of memory", ""),
    ],
)
def test_when_one_worker_ends_all_do_and_its_own_error_is_told(
    tmp_path: Path, how: str, ending: str, details: str
) -> None:
    process = start(tmp_path, how)
    printed, _ = process.communicate(timeout=120)
    pids, (sentence, message, taken_s) = map(json.loads, printed.splitlines())
    assert sentence == ending
    assert message.endswith(details)
    assert taken_s < 30
    assert gone(pids)


def test_a_server_that_ends_while_it_imports_is_one_sentence(tmp_path: Path) -> None:
    """It was a traceback of multiprocessing's: EOFError."""
    (tmp_path / "dies_at_import.py").write_text("import os\nos._exit(9)\n")
    program = tmp_path / "program.py"
    program.write_text(
        "from automap_models.errors import RunFailed\n"
        "from automap_models.run.workers import Workers\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        Workers(2, ['dies_at_import'])\n"
        "    except RunFailed as error:\n"
        "        print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.startswith("process 0: the server that starts it has ended"), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_the_command_however_it_ends(tmp_path: Path, sent: signal.Signals) -> None:
    """Ctrl-C reaches the whole group of processes; a command that is killed cannot stop anybody."""
    process = start(tmp_path, "nobody does")
    assert process.stdout is not None
    pids = json.loads(process.stdout.readline())
    time.sleep(0.5)  # until the workers sleep in what they have to do
    if sent is signal.SIGINT:
        os.killpg(process.pid, sent)
    else:
        os.kill(process.pid, sent)
    assert process.wait(timeout=60) != 0
    assert gone(pids)
