"""Scripts are read as bash runs them: the expected words are what bash prints of the same script."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from automap_models.errors import BadInput
from automap_models.importing.shell import Script

SCRIPTS = {
    "arrays": 'A=(--x 1 # note\n  --y "2"\n)\nA+=(--z \'3\')\ntrain ${A[@]} "${A[@]}"',
    "defaults": 'N=${M:-4}\nM=${M:-"5"}\ntrain --n $N --m ${M} --k=${K-7}',
    "defaults of defaults": 'K=3\nN=${M:-$((2 * K))}\nL=${M:-${J:-"4"}}\ntrain --n $N --l=${L} --k ${M:-$K}',
    "sums": "N=2\nG=8\nW=$(($N*$G))\ntrain --w $W --half $(( ${W} / 4 - 1 ))",
    "continued": 'O="--a 1 \\\n  --b 2"\ntrain $O \\\n  --c 3',
    "joined": "A=x\ntrain --a=${A}y$A'z'",
    "both hold": 'A=1\nif [ $A -eq 1 ] && [[ "$A" != 2 ]]; then B=--yes; else B=--no; fi\ntrain $B',
    "one holds": 'A=1\nif [ $A = 2 ] || [ -z "$Q" ]; then\n  B=--yes\nelif [ $A = 1 ]; then\n  B=--no\nfi\ntrain $B',
    "an else": 'A=1\nif [ $A -gt 1 ]; then B=--a; elif [ ! -n "$A" ]; then B=--b; else B=--c; fi\ntrain $B',
    "nested": "A=1\nif [ $A = 1 ]; then\n if [ $A = 2 ]; then B=--no; fi\n C=--yes\nfi\ntrain $B $C",
    "a short condition": "A=1\n[ $A = 1 ] && B=--yes\n[ $A = 2 ] && B=--no\n[ $A = 1 ] || B=--never\ntrain $B",
    "a here-document": "cat > /dev/null <<EOF\ntrain --no\nEOF\ntrain --yes",
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash runs the same scripts")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_read_as_bash_runs_it(name: str) -> None:
    """A function `train` prints its words; those of quotes that hold several are cut at spaces, as in our reading."""
    script = f'train() {{ echo "$@"; }}\n{SCRIPTS[name]}\n'
    environment = {"PATH": "/usr/bin:/bin"}
    printed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=environment).stdout
    read = [word.text for word in Script(SCRIPTS[name], {}).command]
    assert [text for text in read if text != "$B"] == ["train", *printed.split()]  # what nothing sets stays as it is


def test_a_word_knows_where_it_is_used_and_where_it_is_written() -> None:
    text = "TP=8\ntrain --tp $TP --pp 2"
    words = {word.text: word for word in Script(text, {}).command}
    assert text[slice(*words["8"].site)] == "$TP"
    assert words["8"].origin == (3, 4)
    assert text[slice(*words["2"].origin)] == "2"


def test_what_only_running_decides_is_left_out() -> None:
    script = Script("if [ -f here ]; then A=--x; fi\nfor i in 1 2; do B=--y; done\ntrain --z $A $B", {})
    assert [word.text for word in script.command] == ["train", "--z", "$A", "$B"]
    assert len(script.skipped) == 2


@pytest.mark.parametrize("line", ['A="$A $A"', "A=$A$A"])
def test_variables_that_double_are_refused(line: str) -> None:
    with pytest.raises(BadInput, match="more than can be meant"):
        Script("A=xxxxxxxx\n" + f"{line}\n" * 60 + "train --a $A", {})
