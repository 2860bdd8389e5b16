"""SKILL.md, llms.txt and CONTRIBUTING.md: what they say to type and to write is taken, and what they link is there."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

from automap_models.formats.hardware_yaml import read_cluster, read_device
from automap_models.formats.runtime_yaml import read_runtime
from automap_models.formats.schema import load_yaml
from automap_models.infer.runner import Command
from automap_models.workloads.config_families import families

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"(?m)`(automap [a-z]+ [^`]*)`|^(automap .*)$")
YAML = re.compile(r"(?s)```yaml\n(.*?)```")


def commands(text: str) -> list[str]:
    return [one or other for one, other in COMMAND.findall(text)]


def test_every_command_of_the_skill_is_one() -> None:
    text = (ROOT / "SKILL.md").read_text("utf-8")
    assert len(commands(text)) >= 9
    for line in commands(text):
        _, name, *arguments = shlex.split(line)
        command: Command[Any] = import_module(f"automap_models.infer.commands.{name}").COMMAND
        assert command.parser(name).parse_args(arguments)


def test_the_files_of_the_guide_are_read(tmp_path: Path) -> None:
    device, runtime, family = YAML.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    (tmp_path / "mine.yaml").write_text(device)
    assert read_device(tmp_path / "mine.yaml").step is None
    assert read_cluster(f"32x{tmp_path / 'mine.yaml'}").devices == 32
    (tmp_path / "runtime.yaml").write_text(runtime)
    assert read_runtime(tmp_path / "runtime.yaml").zero == 3
    (tmp_path / "family.yaml").write_text(family)
    document: Any = load_yaml(tmp_path / "family.yaml", "")
    assert document["mine"]["like"] == "llama"
    assert document["mine"]["keys"].items() <= families()["mistral"].keys.items()


def test_llms_txt_is_of_its_format_and_links_what_is_there() -> None:
    """One title, a summary, and lists of links below headings of the second level (llmstxt.org)."""
    title, _, summary, *lines = (ROOT / "llms.txt").read_text("utf-8").splitlines()
    assert title == "# automap"
    assert summary.startswith("> ")
    links = [re.fullmatch(r"- \[[^]]+\]\(([^)]+)\)(: .+)?", line) for line in lines if line.startswith("-")]
    assert len(links) > 15
    assert all(link and (ROOT / link[1]).is_file() for link in links)
    assert all(line.startswith(("## ", "- ", "An agent ")) for line in lines if line)


def test_the_citation_is_yaml() -> None:
    citation: Any = load_yaml(ROOT / "CITATION.cff", "")
    assert citation["license"] == "Apache-2.0"
