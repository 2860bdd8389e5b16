"""Files that a command could not be given without a traceback, an endless wait or a misleading sentence.

A named pipe was opened and waited for; a circle of symbolic links was a RuntimeError of pathlib; an HLO file of twenty
gigabytes was read whole before anybody asked for its size; of a key that stood in a file twice one was ignored.
"""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from automap_models.errors import BadInput
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.formats.observed_json import read_observed
from automap_models.infer import app

TOPO = "{nodes: 2, devices_per_node: 2, intra: 130e9, inter: 3e9, memory: 32e9}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile, a pipe and a link to itself in the working folder."""
    monkeypatch.chdir(tmp_path)
    np.savez("good.npz", C=np.ones(4), A=np.ones(4), W=np.ones(4))
    os.mkfifo("pipe")
    Path("circle").symlink_to("circle")
    return tmp_path


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """What waits for longer is ended by a TimeoutError."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refusal(command: str, *arguments: str) -> str:
    """The one line with which a command refuses its arguments."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), at_most(60):
        code = getattr(app, command)([*arguments])
    assert (code, out.getvalue(), err.getvalue().count("\n")) == (2, "", 1), err.getvalue()
    return err.getvalue()


COMMANDS = {
    "infer": [("FILE", "--topo", "A"), ("good.npz", "--topo", "FILE"), ("good.npz", "--plan", "FILE")],
    "plan": [("FILE", "--topo", "A"), ("good.npz", "--topo", "FILE"), ("good.npz", "--topo", "A", "--plan", "FILE")],
    "place": [("FILE",), ("FILE", "--plan", "good.npz")],
    "profile": [("FILE", "--show")],
    "search": [("pp", "FILE", "--topo", "A"), ("opp", "FILE", "--topo", "A")],
}
CALLS = [(command, call) for command, calls in COMMANDS.items() for call in calls]


@pytest.mark.parametrize(("command", "call"), CALLS)
def test_a_named_pipe_is_not_waited_for(command: str, call: tuple[str, ...]) -> None:
    message = refusal(command, *("./pipe" if argument == "FILE" else argument for argument in call))
    assert "pipe: is a pipe; save what comes through it in a file and give that" in message


@pytest.mark.parametrize(("command", "call"), CALLS)
def test_a_circle_of_links_is_no_file(command: str, call: tuple[str, ...]) -> None:
    message = refusal(command, *("./circle" if argument == "FILE" else argument for argument in call))
    assert "circle" in message


def test_nothing_is_written_through_a_circle_of_links() -> None:
    message = refusal("infer", "good.npz", "--topo", "A", "--planner", "uniform", "--out", "circle")
    assert "circle: cannot be written (Too many levels of symbolic links)" in message


def test_what_a_shell_writes_into_a_pipe_is_read() -> None:
    """`automap infer … --topo <(…)`: the pipe is /dev/fd/63, and it is read once."""
    reading, writing = os.pipe()
    os.write(writing, TOPO.encode())
    os.close(writing)
    assert read_cluster(f"/dev/fd/{reading}").nodes == 2
    os.close(reading)


def test_a_profile_is_read_more_than_once_and_comes_through_no_pipe() -> None:
    reading, writing = os.pipe()
    os.write(writing, Path("good.npz").read_bytes())
    os.close(writing)
    with pytest.raises(BadInput, match="is a pipe; save what comes through it in a file"):
        read_profile(f"/dev/fd/{reading}")
    os.close(reading)


def test_an_hlo_file_larger_than_the_memory() -> None:
    pytest.importorskip("jax")
    with Path("huge.hlo").open("wb") as file:
        file.write(b"HloModule step\n")
        file.truncate(100 << 30)  # a hole: it takes no room
    for command in (("profile", "huge.hlo", "--show"), ("plan", "huge.hlo", "--topo", "A")):
        assert "huge.hlo: has more than 268,435,456 bytes; give a smaller file" in refusal(*command)


def test_a_key_that_stands_twice_in_a_description() -> None:
    Path("c.yaml").write_text(TOPO.replace("nodes: 2,", "nodes: 2, nodes: 4,"))
    with pytest.raises(BadInput, match=r"c\.yaml: is not valid YAML in line 1 \(a key stands there twice\)"):
        read_cluster("c.yaml")


def test_a_key_that_stands_twice_in_a_document_that_does_not_fit() -> None:
    """It said "$.schema is 1, not 1": the first was wrong, and the second was shown."""
    times = json.dumps({"schema": 1, "kind": "observed", "stages": []})
    Path("t.json").write_text(times.replace('"schema": 1', '"schema": 2, "schema": 1'))
    with pytest.raises(BadInput, match=r"t\.json: has the key 'schema' twice in one mapping"):
        read_observed("t.json")
