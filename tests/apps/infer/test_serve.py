"""automap serve: where it listens, for whom, and until when."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from automap_models.infer.app import serve as main
from automap_models.serve import static

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "65536"], "automap serve: error: --port: is 65536; give a number up to 65535"),
        (["--host", "0.0.0.0"], "without a password and in the clear; leave it out, or give --allow-remote, too"),
        (["--host", "no-such.invalid", "--allow-remote"], "host no-such.invalid: is no interface of this machine"),
        (["--static", "."], "automap serve: error: folder .: is there already; remove it, or name a new one"),
        (["--models", "gpt2"], "automap serve: error: --models: is of a page that is written; give --static, too"),
        (["--port", "x"], "argument --port: 'x' is no whole number ≥ 0"),
    ],
)
def test_a_bad_argument_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_port_in_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["--port", port]) == 2
    assert (
        f"port {port}: cannot be listened on (Address already in use); give another --port" in capsys.readouterr().err
    )


def test_without_the_server_s_packages_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main([]) == 2
    assert capsys.readouterr().err.endswith("not installed; pip install 'automap-models[serve]'\n")


def test_what_is_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library's part is tested in tests/serve/test_static.py."""
    monkeypatch.setattr(
        static, "write_static", lambda request, watch: {"strategies": len(request.clusters), "bytes": 3_400_000}
    )
    folder = str(tmp_path / "page")
    assert main(["--static", folder, "--models", "gpt2", "--clusters", "8xh100, A"]) == 0
    assert capsys.readouterr().out.startswith(f"{folder}: 2 strategies, 3.4 MB; to look at it: python -m http.server")
    assert main(["--static", folder, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"schema": 1, "kind": "page", "folder": folder, "strategies": 3, "bytes": 3_400_000}


def test_it_says_where_it_is_and_answers_until_it_is_interrupted(tmp_path: Path) -> None:
    """Nothing is written where it runs."""
    command = [sys.executable, "-c", "from automap_models.infer.app import main; raise SystemExit(main())"]
    with subprocess.Popen(
        [*command, "serve", "--port", "0", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        address = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["address"]
        with urlopen(address) as answer:
            assert b"<title>automap" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    assert list(tmp_path.iterdir()) == []
