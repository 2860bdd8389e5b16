"""`automap mcp`: the commands as tools of agents, by the Model Context Protocol (docs/how-to/agents.md)."""

from __future__ import annotations

import argparse
import json
import threading
import time
from typing import TYPE_CHECKING, Any

from automap_models.errors import BadInput
from automap_models.version import __version__

from ..runner import Command, Report
from ..tools import TOOLS, outcome, refusal, tools_document

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp_types import CallToolRequestParams, PaginatedRequestParams

    from automap_models.planners.base import Progress

EPILOG = """An agent starts it and speaks to it on standard input and output, on which it prints nothing else. Its tools
are fit, plan, price, doctor and export: they take what the commands take, answer as these do with --json, and refuse in
the same sentence, with the exit code that the command would have. No file is written, and no code of a model is run.

examples:
  claude mcp add automap -- automap mcp       let an agent have it
  automap mcp --json                          the tools and their arguments, as JSON

A question has at most 256 KB; one search runs at a time, eight wait, and each ends after ten minutes.
It needs pip install 'automap-models[mcp]'.
"""
INSTRUCTIONS = """Ask fit whether a model fits GPUs, plan for the best strategy, price what one takes, doctor what is
wrong with a command or a configuration, and export to write a strategy (the answer of plan or price, given as `plan`)
for a framework. Pass figures on with what they rest on: `verdict` says whether memory fits, `gap` how much shorter any
strategy can be. What is refused has an exit_code: 2 where an argument is wrong, 3 where nothing fits."""
NEWS_S = 0.5
"""From one piece of news on how far a search is to the next."""


def report(namespace: argparse.Namespace) -> Report:
    """The tools as JSON; or nothing, and then what an agent asks.

    Raises:
        BadInput: the protocol is not installed.
    """
    if namespace.json:
        return Report(lambda: None, tools_document)
    try:
        import mcp.server.lowlevel  # noqa: F401
    except ImportError:
        raise BadInput("mcp 2 is not installed", where="mcp", do="pip install 'automap-models[mcp]'") from None
    return Report(lambda: None, tools_document, then=serve)


def serve() -> None:
    """Answer on standard input and output until the agent goes."""
    import anyio
    from mcp.server.stdio import stdio_server

    async def answering() -> None:
        async with stdio_server() as (questions, answers):
            server = agent_server()
            await server.run(questions, answers, server.create_initialization_options())

    anyio.run(answering)


def agent_server() -> Server[Any]:
    """The tools by the protocol; calls are answered one after the other."""
    import mcp_types as types
    from anyio import CapacityLimiter, from_thread, to_thread
    from mcp.server.lowlevel import Server

    from automap_models.serve.limits import require_place

    limiter = CapacityLimiter(1)
    reading = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)

    async def list_tools(
        context: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        tools = [
            types.Tool(name=name, description=tool.description, input_schema=tool.schema, annotations=reading)
            for name, tool in TOOLS.items()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> types.CallToolResult:
        stopped, begun_s, news_s = threading.Event(), time.monotonic(), [0.0]

        def watch(progress: Progress) -> None:
            passed_s = time.monotonic() - begun_s
            if passed_s > news_s[0] + NEWS_S:
                news_s[0] = passed_s
                from_thread.run(context.session.report_progress, passed_s, None, progress.what)

        def work() -> tuple[dict[str, Any], bool]:
            return outcome(params.name, params.arguments or {}, watch, stopped)

        try:
            require_place(limiter.statistics().tasks_waiting)
            document, failed = await to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=True)
        except BadInput as error:
            document, failed = refusal(error), True
        finally:
            stopped.set()
        text = types.TextContent(type="text", text=document["error"] if failed else json.dumps(document))
        return types.CallToolResult(content=[text], structured_content=document, is_error=failed)

    return Server(
        "automap", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


COMMAND = Command(
    description="Be asked by an agent: fit, plan, price, doctor and export as tools of the Model Context Protocol.",
    epilog=EPILOG,
    exits={0: "the agent has gone", 2: "mcp is not installed", 130: "interrupted"},
    add_arguments=lambda parser: None,
    json="print the tools and their arguments as JSON, and end",
    request=lambda namespace: namespace,
    report=report,
)
