"""The scripts complete what the commands take, in a shell that evaluates them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from automap_models.infer import app
from automap_models.infer.app import SHELLS


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "automap.bash"
    with pytest.MonkeyPatch.context() as patch, path.open("w", encoding="utf-8") as file:
        patch.setattr("sys.stdout", file)
        assert app.main(["--print-completion", "bash"]) == 0
    return path


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of the words, after it has evaluated the script."""
    line = " ".join(f"'{word}'" for word in words)
    code = f"""
        source {script}
        COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMP_LINE="${{COMP_WORDS[*]}}"; COMP_POINT=${{#COMP_LINE}}
        complete=$(complete -p {words[0]}); function=${{complete#*-F }}; function=${{function%% *}}
        $function {words[0]} '{words[-1]}' '{words[-2]}'
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("automap", "p"), {"profile", "plan", "place"}),
        (("automap", "search", ""), {"opp", "adp", "pp"}),
        (("automap", "infer", "x.npz", "--to"), {"--topo"}),
        (("automap-infer", "x.npz", "--schedule", "1f"), {"1f1b", "1f1b-deep"}),
        (("automap-plan", "bert48", "--topo", "dgx"), {"dgx-1", "dgx-a100-4", "dgx-h100-4"}),
        (("automap-plan", "bert48", "--gpus", "8xa"), {"8xa100", "8xa100-40"}),
        (("automap-plan", "gpt3"), {"gpt3_7b", "gpt3_13b"}),
        (("automap-search", "opp", "bert48", "--device", "h"), {"h100", "h200"}),
    ],
)
def test_bash_offers_what_the_commands_take(script: Path, words: tuple[str, ...], offered: set[str]) -> None:
    assert completed(script, *words) >= offered
    assert all(word.startswith(words[-1]) for word in completed(script, *words))


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script_for_every_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["--print-completion", shell]) == 0
    printed = capsys.readouterr().out
    assert all(f"automap-{command}" in printed for command in app.SUMMARIES)


@pytest.mark.parametrize("arguments", [["--print-completion"], ["--print-completion", "dos"]])
def test_another_shell_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(arguments) == 2
    assert "--print-completion" in capsys.readouterr().err
