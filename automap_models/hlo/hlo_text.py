"""HLO and StableHLO as files: which of them a file holds, and names that survive the way through MLIR.

An HLO instruction's own name is lost when it becomes MLIR; only `metadata={op_name=…}` becomes a location. So the
name goes into the op_name, as a mark (`<$dot.1664>`), and so does the position in the trace (`<#12>`), which HLO does
not keep either: its text comes in the post-order of a depth-first search. `read_marks` takes both out again.
"""

from __future__ import annotations

import re
from typing import Literal

from automap_models.errors import BadInput

Form = Literal["hlo", "stablehlo", "bytecode"]

_BYTECODE = b"ML\xefR"
_HLO = re.compile(r"\s*(?:(?://[^\n]*|#[^\n]*)\n\s*)*HloModule\b")
_STABLEHLO = re.compile(r"\b(?:stablehlo|mhlo|chlo|vhlo)\.|\bfunc\.func\b|^module\b", re.MULTILINE)
_OPTIMISED = re.compile(r"^HloModule[^\n]*\bis_scheduled=true|\bkind=k(?:Loop|Input|Output|Custom)\b", re.MULTILINE)
_INSTRUCTION = re.compile(r"^( +(?:ROOT )?%?)([\w.\-]+)( = .*)$", re.MULTILINE)
_NO_VERSION = re.compile(r",\s*api_version=API_VERSION_UNSPECIFIED\b")
_OP_NAME = re.compile(r'(\bmetadata=\{[^\n]*?\bop_name=")')
_METADATA = "metadata={"
_NAME_MARK = re.compile(r"<\$([\w.\-]+)>")
_ORDER_MARK = re.compile(r"<#(\d+)>")
_ANY_MARK = re.compile(r"<[$#][\w.\-]+>/?")
_SLASHES = re.compile(r"//+")
_WHICH_DUMP = (
    "give XLA's dump from before optimisation: with XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_text' "
    "it is the file *before_optimizations.txt"
)
_LABELS = (
    "give HLO text from before optimisation, StableHLO text or StableHLO bytecode, "
    "such as jax.jit(step).lower(…).as_text(debug_info=True)"
)


def recognise(content: bytes, source: str) -> Form:
    """Which form a file's content has.

    Raises:
        BadInput: it is neither HLO nor StableHLO, or HLO after optimisation.
    """
    if content.startswith(_BYTECODE):
        return "bytecode"
    if not content.strip():
        raise BadInput("is empty", where=source, do=_LABELS)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput("is neither text nor StableHLO bytecode", where=source, do=_LABELS) from None
    if _HLO.match(text):
        if _OPTIMISED.search(text):
            raise BadInput("is HLO after optimisation (it is scheduled or fused)", where=source, do=_WHICH_DUMP)
        return "hlo"
    if _STABLEHLO.search(text):
        return "stablehlo"
    raise BadInput("is neither HLO nor StableHLO", where=source, do=_LABELS)


def dynamic_shapes(source: str) -> BadInput:
    """What to say of a module whose shapes are not all known."""
    return BadInput(
        "has dynamic shapes, whose cost and size depend on the data",
        where=source,
        do="export it with every dimension a number",
    )


def mark_names(text: str) -> str:
    """HLO text whose instructions carry their own name in front of their op_name.

    Custom calls that name no version of their interface lose the words that say so: XLA prints and does not read them.
    """
    return _INSTRUCTION.sub(_marked, _NO_VERSION.sub("", text))


def order_mark(position: int) -> str:
    """A mark for the position of an operation in the trace, to be put in front of its op_name."""
    return f"<#{position}>/"


def read_marks(op_name: str) -> tuple[str, tuple[int, ...], str]:
    """Name, positions (of the callers first) and the op_name itself, as marked.

    >>> read_marks("<$call.1><#7>/jit(step)/jit(relu)/<$maximum.3><#2>/max")
    ('maximum.3', (7, 2), 'jit(step)/jit(relu)/max')
    """
    op_name = op_name.partition(";")[0]  # where XLA has folded operations into one it joins their names
    names = _NAME_MARK.findall(op_name)
    path = _SLASHES.sub("/", _ANY_MARK.sub("", op_name)).strip("/")
    order = tuple(int(position) for position in _ORDER_MARK.findall(op_name))
    return (names[-1] if names else path.rpartition("/")[2]), order, path if names else ""


def with_label(name: str, prefix: str, label: str) -> str:
    """A marked op_name with one more part behind a path that it begins with; as it is where it begins otherwise.

    >>> with_label("<$call.1>jit(f)/while/body/<$dot.2><#3>/q/dot", "jit(f)/while/body", "scan_4")
    '<$call.1>jit(f)/while/body/scan_4/<$dot.2><#3>/q/dot'
    """
    position = matched = 0
    while matched < len(prefix):
        mark = _ANY_MARK.match(name, position)
        if mark is not None:
            position = mark.end()
        elif position < len(name) and name[position] == prefix[matched]:
            position, matched = position + 1, matched + 1
        elif position < len(name) and name[position] == "/" and prefix[matched - 1 : matched] in {"", "/"}:
            position += 1
        else:
            return name
    return f"{name[:position]}/{label}{name[position:]}" if name[position : position + 1] in {"", "/"} else name


def without_marks(message: str) -> str:
    """A message about marked text, in which the marks of names are the names.

    >>> without_marks('error: "<$while.13><#4>/jit(f)": no such operand')
    'error: "while.13/jit(f)": no such operand'
    """
    return _ORDER_MARK.sub("", _NAME_MARK.sub(r"\1", message))


def _marked(line: re.Match[str]) -> str:
    head, name, rest = line[1], line[2], line[3]
    mark = f"<${name}>"
    named, count = _OP_NAME.subn(lambda prefix: prefix[1] + mark, rest, count=1)
    if not count:
        metadata = f'op_name="{mark}"'
        named = (
            rest.replace(_METADATA, f"{_METADATA}{metadata} ", 1)
            if _METADATA in rest
            else f"{rest}, {_METADATA}{metadata}}}"
        )
    return f"{head}{name}{named}"
