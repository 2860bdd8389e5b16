"""A documentation page as its readers use it: files written as it says, commands and programs run, outputs compared.

A page is a text with fenced blocks, which are taken in order, all in one folder:

    `name.py`: + ```python    the file is written; so are ```json, ```yaml and scripts below a file's name
    ```python                 the program runs
    ```bash                   its lines that begin with automap run, in this process; those with python datagen/run.py
                              and python train/run.py, too, with the sizes that a test gives them
    ```                       what the block before printed: every line of it, in this order, perhaps among others

A command that ends with another exit code than 0 is a difference, unless the page shows what it printed.
Figures that another machine or another run changes, such as how long planning took, are not compared.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from automap_models.infer import app

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w-]+\.(?:py|json|yaml|sh))`(?: \(.*\))?[:,]$")
PROGRAMS = ("datagen/run.py", "train/run.py")
_USAGE = re.compile(r"[A-Z]{4,}|\[--")
"""What a synopsis holds and a command does not."""
_TIME = re.compile(r"(planned in|as on one process:|^ +time |^ +verified |allowed\)).*")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the name of the file that the line before announces.

    `printed` says that it is what the block before printed: a block without language, not an example of a document.
    """

    language: str
    text: str
    file: str | None
    printed: bool


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        file = _FILE.search(before)
        document = match[2].startswith("{") and not before.startswith("prints")
        yield Block(match[1], match[2], file and file[1], not match[1] and not document)


def commands(block: str) -> Iterator[list[str]]:
    """The automap commands and programs of a bash block: joined over continued lines, without comments."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "automap" and not _USAGE.search(line):
            yield words
        if words[:1] == ["python"] and words[1] in PROGRAMS:
            yield words


def run_program(program: str, overrides: list[str]) -> str:
    """What `python datagen/run.py` or `python train/run.py` prints with these settings; the last of equals counts."""
    import hydra

    from automap_models.datagen.command import make
    from automap_models.resources import conf_dir
    from automap_models.train.main import train

    out = io.StringIO()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"), contextlib.redirect_stdout(out):
        if program == "datagen/run.py":
            make(hydra.compose("datagen", overrides=overrides))
        else:
            train(hydra.compose("train", overrides=overrides))
    return out.getvalue()


def run(words: list[str], sizes: Mapping[str, Sequence[str]]) -> tuple[int, str]:
    """The exit code of a command and what it prints on both streams.

    Args:
        words: the command.
        sizes: a program's path or a command → settings that make it smaller.
    """
    if words[0] == "python":
        return 0, run_program(words[1], [*words[2:], *sizes.get(words[1], ())])
    words = [*words, *sizes.get(" ".join(words[:2]), ())]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = app.main(words[1:])
    return code, out.getvalue()


def execute(code: str, page: str) -> str:
    """What a program prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, page, "exec"), {"__name__": "__main__"})
    return out.getvalue()


def compared(text: str) -> list[str]:
    """Lines that are compared: not empty, no ellipsis, without times."""
    return [_TIME.sub(r"\1", line.rstrip()) for line in text.splitlines() if line.strip(" …")]


def missing(expected: str, printed: str) -> str | None:
    """The first line of `expected` that `printed` does not have after the lines before it; None if it has all."""
    rest = iter(compared(printed))
    return next((line for line in compared(expected) if line not in rest), None)


@dataclass(frozen=True)
class Execution:
    """What a command or a program came to."""

    words: Sequence[str]
    code: int
    printed: str


def failures(executions: Sequence[Execution], shown: str) -> Iterator[str]:
    """Executions that ended with another code than 0, and whose last line a page does not show."""
    lines = compared(shown)
    for execution in executions:
        if execution.code and execution.printed and compared(execution.printed)[-1] in lines:
            continue
        if execution.code:
            yield f"{shlex.join(execution.words)} ends with {execution.code}:\n{execution.printed}"


@dataclass
class Ran:
    """What came of a page: how many commands and programs ran, how many outputs were compared, what differs."""

    runs: int = 0
    outputs: int = 0
    differences: tuple[str, ...] = ()


def run_page(page: Path, skip: tuple[str, ...] = (), sizes: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Ran:
    """Run a page in the current folder.

    Args:
        page: to run.
        skip: words; a block that holds one of them is not run, nor is what it prints compared.
        sizes: a program's path or a command → settings that make it smaller.
    """
    ran = Ran()
    before: list[Execution] = []
    """What ran in the last block that is neither a file nor an output."""
    for block in [*blocks(page), Block("end", "", None, False)]:
        skipped = any(word in block.text for word in skip)
        if block.file is not None:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.printed and before and not skipped:
            ran.outputs += 1
            printed = "\n".join(execution.printed for execution in before)
            line = missing(block.text, printed)
            if line is not None:
                ran.differences += (f"{page.name} says {line!r}, which is not printed there:\n{printed}",)
            ran.differences += tuple(failures(before, block.text))
            before = []
        elif skipped or block.language in ("bash", "python", "end"):
            ran.differences += tuple(failures(before, ""))
            before = [] if skipped else list(executed(block, str(page), sizes))
            ran.runs += len(before)
    return ran


def executed(block: Block, page: str, sizes: Mapping[str, Sequence[str]]) -> Iterator[Execution]:
    """Run what a block holds: a program or commands."""
    if block.language == "python":
        yield Execution(["python"], 0, execute(block.text, page))
    elif block.language == "bash":
        for words in commands(block.text):
            yield Execution(words, *run(words, sizes))
