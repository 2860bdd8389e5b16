"""automap mcp: what an agent is told over standard input and output is what the commands print with --json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from json_schemas import FOLDER
from jsonschema import Draft202012Validator

from automap_models.infer.app import main
from automap_models.infer.app import mcp as run_mcp
from automap_models.infer.runner import WATCH
from automap_models.infer.tools import TOOLS, outcome
from automap_models.planners.base import SILENT
from automap_models.serve import limits

ROOT = Path(__file__).parents[3]
PROGRAM = "from automap_models.infer.app import automap; raise SystemExit(automap())"
GIVEN: dict[str, Any] = {"what": "gpt2", "gpus": "8xh100", "global_batch": 16}
MEGATRON = """torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12
--seq-length 1024 --max-position-embeddings 1024 --vocab-size 50304 --micro-batch-size 1 --global-batch-size 64 --bf16
--tensor-model-parallel-size 4""".replace("\n", " ")
TIMES = ("search_s", "model_s", "exploring_s")


def conversation(*calls: tuple[str, dict[str, Any]]) -> tuple[Any, list[Any]]:
    """What a client that starts the program is told: its tools, and the result of each call."""
    anyio, mcp = pytest.importorskip("anyio"), pytest.importorskip("mcp")

    async def talk() -> tuple[Any, list[Any]]:
        server = mcp.StdioServerParameters(command=sys.executable, args=["-c", PROGRAM, "mcp"], cwd=ROOT)
        with Path(os.devnull).open("w") as nowhere:  # the test's own standard error is no file
            async with mcp.Client(mcp.stdio_client(server, nowhere), read_timeout_seconds=300) as client:
                return (await client.list_tools()).tools, [await client.call_tool(*call) for call in calls]

    return anyio.run(talk)


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in TIMES}


def schema(command: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((FOLDER / f"{command}.json").read_text("utf-8")))


@pytest.mark.slow
def test_a_client_is_told_what_the_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    """Its calls go over pipes to a process of their own, whose every line is one of the protocol."""
    priced = {**GIVEN, "tp": 2, "zero": 1, "reserve": ["0=1 GB"]}
    wrong = {**GIVEN, "tp": 5}
    tools, results = conversation(
        ("fit", GIVEN),
        ("plan", {**GIVEN, "for": "megatron"}),
        ("price", {name: value for name, value in priced.items() if name != "reserve"}),
        ("doctor", {"what": MEGATRON, "device": "h100"}),
        ("fit", wrong),
        ("price", priced),
        ("plan", {"what": "llama3-405b", "gpus": "1xt4", "global_batch": 1}),
        ("sing", {}),
    )
    assert [tool.name for tool in tools] == [*TOOLS]
    assert all(tool.annotations.read_only_hint for tool in tools)
    of_model = ["gpt2", "--gpus", "8xh100", "--global-batch", "16"]
    lines = [
        ["fit", *of_model],
        ["plan", *of_model, "--for", "megatron"],
        ["plan", *of_model, "--tp", "2", "--zero", "1", "--price"],
        ["doctor", MEGATRON, "--device", "h100"],
    ]
    for line, result in zip(lines, results, strict=False):
        assert not result.is_error
        assert main([*line, "--json"]) == 0
        assert without_times(result.structured_content) == without_times(json.loads(capsys.readouterr().out))
        assert json.loads(result.content[0].text) == result.structured_content
        schema(line[0]).validate(result.structured_content)
    refused = [result.structured_content for result in results[4:]]
    assert all(result.is_error for result in results[4:])
    assert refused[0] == {"error": "--tp: 5 does not divide the 12 heads of gpt2; give a divisor", "exit_code": 2}
    assert refused[1]["error"].startswith("--reserve: is for a search")
    assert refused[2]["exit_code"] == 3
    assert refused[3] == {"error": f"unknown tool 'sing'; choose from {', '.join(TOOLS)}", "exit_code": 2}


def answered(name: str, **arguments: Any) -> dict[str, Any]:
    return outcome(name, arguments, SILENT, threading.Event())[0]


def test_a_priced_strategy_goes_to_export_as_it_is() -> None:
    priced = answered("price", **GIVEN, tp=2, pp=2)
    exported = answered("export", plan=priced, to="megatron")
    schema("export").validate(exported)
    assert "--tensor-model-parallel-size 2\n" in exported["files"][""]


def test_a_list_is_an_option_that_is_repeated_or_numbers_with_commas() -> None:
    priced = answered("price", **GIVEN, pp=2, layers=[5, 7], freeze=["block_0", "block_1"], sequence_parallel=None)
    assert priced["stage_layers"] == [5, 7]
    assert priced["training"]["freeze"] == ["block_0", "block_1"]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("fit", {}, "the following arguments are required: MODEL|FILE"),
        ("fit", {"what": "gpt2"}, "one of the arguments --gpus --topo is required"),
        ("fit", {**GIVEN, "topo": "A"}, "argument --topo: not allowed with argument --gpus"),
        ("fit", {**GIVEN, "devices": "8..16"}, "fit: has no argument 'devices'; it has what, gpus, topo"),
        ("fit", {**GIVEN, "what": "my_module:make_model"}, "is code, which no tool runs"),
        ("fit", {**GIVEN, "what": "--help"}, "--help"),
        ("fit", {**GIVEN, "tp": 2.5}, "argument --tp: '2.5' is no whole number"),
        ("fit", {**GIVEN, "tp": {"a": 1}}, 'tp: is {"a": 1}; give a text or a number'),
        ("fit", {**GIVEN, "tp": [[1]]}, "tp: is [1]; give a text or a number"),
        ("fit", {**GIVEN, "dropout": "yes"}, "dropout: is 'yes'; give true or false"),
        ("fit", {**GIVEN, "runtime": "x" * (256 << 10)}, "has more than 262,144 bytes"),
        ("fit", {**GIVEN, "runtime": "a\0b"}, "NUL"),
        ("export", {"plan": {"kind": "strategy"}, "to": "megatron"}, "plan.json"),
        ("doctor", {"what": "/no/such/file"}, "is neither a file nor a command line"),
    ],
)
def test_what_is_asked_wrongly_is_refused_in_a_sentence(name: str, arguments: dict[str, Any], words: str) -> None:
    document, failed = outcome(name, arguments, SILENT, threading.Event())
    assert failed
    assert document["exit_code"] == 2
    assert words in document["error"]
    assert "\n" not in document["error"]


def test_a_search_that_takes_too_long_or_that_nobody_waits_for_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = threading.Event()
    gone.set()
    assert "search: took more than" in outcome("fit", GIVEN, SILENT, gone)[0]["error"]
    assert WATCH.get() is None, "the next command of this process would be stopped, too"
    monkeypatch.setattr(limits, "LONGEST_SEARCH_S", 0.0)
    assert (
        "search: took more than 0 s"
        in outcome("fit", {**GIVEN, "what": "llama3-70b"}, SILENT, threading.Event())[0]["error"]
    )


def test_a_defect_is_told_without_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(request: object) -> Callable[[], None]:
        raise KeyError(request)

    monkeypatch.setitem(vars(TOOLS["fit"].program), "report", fails)
    document, failed = outcome("fit", GIVEN, SILENT, threading.Event())
    assert (document, failed) == ({"error": "ended by a defect of ours", "exit_code": 1}, True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "KeyError" in captured.err


def test_every_tool_s_schema_is_one_and_has_the_options_of_its_command() -> None:
    for tool in TOOLS.values():
        Draft202012Validator.check_schema(tool.schema)
        assert all(kind["description"] for kind in tool.schema["properties"].values())
    Draft202012Validator(TOOLS["price"].schema).validate({**GIVEN, "tp": 2, "recompute": "full", "freeze": ["block_?"]})
    assert {"tp", "zero", "for", "lora", "gpus"} <= TOOLS["price"].arguments.keys() < TOOLS["plan"].arguments.keys()
    assert not {"json", "plot", "price", "help", "list_clusters"} & TOOLS["plan"].arguments.keys()


def test_the_tools_are_listed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_mcp(["--json"]) == 0
    assert [tool["name"] for tool in json.loads(capsys.readouterr().out)["tools"]] == [*TOOLS]


def test_without_the_protocol_s_package_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)
    assert run_mcp([]) == 2
    assert capsys.readouterr().err == (
        "automap mcp: error: mcp: mcp 2 is not installed; pip install 'automap-models[mcp]'\n"
    )


def test_nothing_but_the_protocol_is_printed_and_it_ends_with_its_input() -> None:
    """Lines that are none of the protocol's are answered by it, or passed over."""
    pytest.importorskip("mcp")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "mcp"], input="{\nhello\n\n", cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert [json.loads(line)["jsonrpc"] for line in done.stdout.splitlines()] == ["2.0"] * len(done.stdout.splitlines())
