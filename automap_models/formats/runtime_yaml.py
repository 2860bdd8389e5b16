"""Runtimes by the names of shipped files or from YAML files: what a framework makes of a strategy.

    conf/runtime/NAME.yaml ──→ RuntimeFile ── precision, device, year ──→ Runtime (cost.runtime)

Rows of measured steps name the system that ran, and perhaps its year, `Megatron-LM 2021`; the runtime whose `systems`
are in that name says what the row leaves open. No number is of one model or one row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from automap_models.core.device import StepConstants
from automap_models.core.framework import Limits
from automap_models.core.strategy import PRECISIONS, RECOMPUTE, ZERO_STAGES, Precision, Recompute
from automap_models.cost.runtime import CAST_GRADIENT_BYTES, Runtime
from automap_models.errors import BadInput
from automap_models.formats.atomic import write_text
from automap_models.formats.schema import Document, Text, convert, document_of, find_yaml, load_yaml, shipped_names
from automap_models.simulate.runtime_numbers import NUMBERS

SequenceParallel = Literal["never", "with tp", "with selective recomputation"]
Remainder = Literal["ends", "last"]
"""Which stages have fewer layers where they do not divide: the first and the last one, or only the last ones."""
CudaGraph = Literal["none", "some", "all"]
TODAY = 9999
"""Year of a system whose name holds none, but for those that hardly anybody runs any more."""
OF_LINKS = ("exchange_shares", "dispatch_shares")
LEAST = {"imbalance": 1.0} | dict.fromkeys(("compute", "gathers_a_layer", "vocabulary_multiple", "chunk_layers"), 1e-6)
LEAST |= dict.fromkeys(OF_LINKS, 1e-6)
MOST = dict.fromkeys(("tensor_overlap", "gradient_overlap", "expert_overlap", "routing", "graphed", *OF_LINKS), 1.0)
MOST |= {"reserve": 0.9}
"""Keys of shares of something; key → the least of numbers that are not 0, and the largest of those that are shares."""
KEYS = "a runtime's file has the keys that docs/reference/files.md lists; the shipped ones are in conf/runtime"
GENERAL = "general"
"""Name of the runtime of programs in general."""
WITHOUT_FLASH = frozenset({"v100", "t4"})
"""Devices for which FlashAttention has no kernel: it asks for compute capability 8.0."""
FLASH_2_DEVICES = frozenset(
    {"a100-40", "a100", "a100-pcie", "a800", "a10g", "l4", "l40s", "rtx4090", "rtx5090", "rtx-pro-6000"}
)
"""Devices that FlashAttention-2's kernels are the newest ones for."""
HOPPER = frozenset({"h100", "h100-96", "h200", "b200", "gb200", "b300", "gb300"})
"""Devices that there are flash kernels for which are written for Hopper and later devices."""


class Runs(Document, kw_only=True):
    """What a program runs of which no plan is written: fields of `core.framework.Limits`."""

    schedules: tuple[Text, ...]
    zeros: tuple[Literal[0, 1, 2, 3], ...] = ZERO_STAGES
    recompute: tuple[Recompute, ...] = RECOMPUTE
    precisions: tuple[Precision, ...] = PRECISIONS
    undivided: tuple[Literal["tp", "pp", "cp", "ep"], ...] = ()


AsInRuntime: Any = document_of(Runtime, "name", "flash", "gradient_bytes", "gradient_moved_bytes", "weighs_within")


class RuntimeFile(AsInRuntime, kw_only=True):
    """What a framework does by default; keys that are not said here are fields of Runtime.

    Attributes:
        name: that people call it by.
        about: the program, the day, and the rows that its numbers are fitted to.
        systems: regular expression of the names that rows of measured steps call it by; none where it is empty.
        flash_from: the first year in which attention runs in one kernel.
        flash_2_from: the first year in which that is FlashAttention-2's, where the device has none that is newer.
        sequence_parallel: when the devices of tensor parallelism share what is between their operators.
        dropout: whether its GPT drops activations.
        remainder: which stages have fewer layers.
        vocabulary_multiple: to which the vocabulary is padded.
        chunk_layers: of a virtual stage of an interleaved schedule; None: there are two virtual stages a rank.
        undated: the year that it is of where a system's name holds none.
        zero: which stage of ZeRO it runs unless a row says.
        untied: whether GPT's output matrix is not the word embedding.
        zero_beside_pipeline: the most that ZeRO divides where there is a pipeline.
        micro_batches_are_ranks: whether a pipeline runs as many micro-batches as it has ranks, unless it is told.
        overlaps_experts: whether tokens go to experts beside another micro-batch's computation, `expert_overlap` of it.
        gradient_bytes, gradient_moved_bytes: by precision, where they are not 4 and 6.
        fused_gradients_from: the first year in which products of gradients add to what is there, and move none.
        weighs_within_from: the first year in which experts are weighted before their last product, whose result is not
            saved.
        hopper_attention: whether flash kernels are those written for Hopper, where that is the device.
        cuda_graph: which operations the host launches together: none, some (Transformer Engine's graphs of attention
            and routers), or all (of a whole iteration).
        graphed: share of the operations that `some` are.
        states_tensors: whether memory that is stated of its steps is that of tensors alone.
        left_out, mixtures_left_out: least and largest median error of a source, or of a part of the steps of a single
            one, of all steps or of those of mixtures, with numbers that are fitted to the others
            (benchmarks/results/runtimes.md); None where that is not known.
        fitted_to: sources of the measured steps that its numbers are fitted to.
        runs: which strategies it runs, or the target of `automap export` whose these are; None: that of its name, and
            without one all.
    """

    name: str
    about: str
    systems: str = ""
    flash_from: int = 0
    flash_2_from: int = TODAY + 1
    sequence_parallel: SequenceParallel = "never"
    dropout: bool = False
    remainder: Remainder = "ends"
    vocabulary_multiple: int = 1
    chunk_layers: int | None = None
    undated: int = TODAY
    zero: int = 0
    untied: bool = False
    zero_beside_pipeline: int = 3
    micro_batches_are_ranks: bool = False
    overlaps_experts: bool = False
    gradient_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    gradient_moved_bytes: dict[str, float] = msgspec.field(default_factory=dict)
    fused_gradients_from: int = TODAY + 1
    weighs_within_from: int = TODAY + 1
    states_tensors: bool = False
    cuda_graph: CudaGraph = "none"
    left_out: tuple[float, float] | None = None
    mixtures_left_out: tuple[float, float] | None = None
    fitted_to: tuple[Text, ...] = ()
    runs: Text | Runs | None = None

    def limits(self, targets: Mapping[str, Limits]) -> Limits | None:
        """What it runs; None where nobody says.

        Args:
            targets: name → what a target can express.
        """
        if isinstance(self.runs, Runs):
            runs = msgspec.structs.asdict(self.runs)
            schedules = {name: name for name in runs.pop("schedules")}
            return Limits(name=self.name, schedules=schedules, **runs)
        return targets.get(self.runs or self.name)

    def runtime(self, precision: Precision, device: str, year: int = TODAY, *, flash: bool | None = None) -> Runtime:
        """What it makes of a strategy.

        Args:
            precision: of the strategy.
            device: name of the kind of device.
            year: of the program.
            flash: whether attention runs in one kernel; None: as in that year.
        """
        fused = year >= self.fused_gradients_from
        alike = {field.name: getattr(self, field.name) for field in fields(Runtime) if hasattr(self, field.name)}
        return Runtime(
            **alike
            | {
                "flash": year >= self.flash_from if flash is None else flash,
                "flash_2": year >= self.flash_2_from if device in FLASH_2_DEVICES else self.flash_2,
                "tensor_overlap": 0.0 if precision == "nvfp4" else self.tensor_overlap,  # recipes turn it off there
                "gradient_bytes": self.gradient_bytes.get(precision, 4),
                "gradient_moved_bytes": 0.0 if fused else self.gradient_moved_bytes.get(precision, CAST_GRADIENT_BYTES),
                "weighs_within": year >= self.weighs_within_from,
                "hopper_attention": self.hopper_attention and device in HOPPER,
                "expert_overlap": self.expert_overlap if self.overlaps_experts else 0.0,
                "graphed": {"none": 0.0, "some": self.graphed, "all": 1.0}[self.cuda_graph],
            }
        )

    def shares_tokens(self, year: int, tp: int, selective: bool) -> bool:
        """Whether tensor parallelism shares tokens, too, in that year's program."""
        if tp == 1 or self.sequence_parallel == "never":
            return False
        return self.sequence_parallel == "with tp" or (selective and year >= 2022)


def read_runtime(name_or_path: str | Path) -> RuntimeFile:
    """The shipped runtime of that name, or the one in that YAML file.

    Raises:
        BadInput: neither a known name nor a readable file, a key that is unknown or has a wrong value, or a number out
            of range.
    """
    path = find_yaml(name_or_path, "runtime", "runtime")
    file = convert(load_yaml(path, KEYS), RuntimeFile, where=str(path), do=KEYS)
    for key in file.__struct_fields__:
        value = getattr(file, key)
        numbers = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
        least, most = LEAST.get(key, 0.0), MOST.get(key, 1e15)
        for number in numbers:
            if isinstance(number, int | float) and not least <= number <= most:
                do = f"give a share from 0 to {most:g}" if key in MOST else f"give a number from {least:g} on"
                raise BadInput(f"{key} is {number!r}", where=str(path), do=do)
    return file


def numbers_of(file: RuntimeFile, constants: StepConstants) -> dict[str, float]:
    """Name in NUMBERS → value in the file, or that of the device's constants where it says nothing."""
    values = {}
    for name, number in NUMBERS.items():
        value = getattr(file, number.key or name)
        if value is None:
            values[name] = float(getattr(constants, number.usual))
        else:
            values[name] = float(value if number.place is None else value[number.place])
    return values


def file_with(file: RuntimeFile, values: Mapping[str, float]) -> RuntimeFile:
    """The runtime with other numbers, of three figures each; those that are not named stay.

    Args:
        values: of numbers in NUMBERS; with one of a pair also the other one.
    """
    changes: dict[str, Any] = {}
    for name, number in NUMBERS.items():
        if name in values:
            value = float(f"{values[name]:.3g}")
            changes[number.key or name] = (*changes.get(number.key, ()), value) if number.key else value
    return msgspec.structs.replace(file, **changes)


def write_runtime(path: str | Path, file: RuntimeFile, comment: str) -> None:
    """Write a runtime as YAML, whole or not at all; reading it gives the same runtime.

    Args:
        path: the file.
        file: what it says; what is as in programs in general is left out.
        comment: that stands at its beginning, of one line or more.

    Raises:
        BadInput: the file cannot be written.
    """
    import yaml

    usual = msgspec.to_builtins(RuntimeFile(name="", about=""))
    named = {"name": file.name, "about": file.about}
    values = named | {key: value for key, value in msgspec.to_builtins(file).items() if value != usual[key]}
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    write_text(path, lines + yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def known_runtimes() -> list[str]:
    """Names of the shipped runtimes, sorted."""
    return shipped_names("runtime")


@cache
def _shipped() -> tuple[RuntimeFile, ...]:
    return tuple(read_runtime(name) for name in known_runtimes())


def runtime_named(system: str, usual: RuntimeFile | None = None, graph: CudaGraph = "none") -> RuntimeFile:
    """The runtime of a system by the name that a row calls it.

    Args:
        system: its name.
        graph: the operations that the host launches together; a runtime of `all` is of steps that do so.
        usual: what runs the systems that its own `systems` name, all where it has none, and those that no shipped
            runtime's name; None is `general`, for the latter.
    """
    if usual is not None and re.search(usual.systems, system.lower()):
        return usual
    named = [file for file in _shipped() if file.systems and re.search(file.systems, system.lower())]
    of_graph = [file for file in named if file.cuda_graph == graph == "all"]
    others = [file for file in named if file.cuda_graph != "all"]
    return (*of_graph, *others, usual or read_runtime(GENERAL))[0]


def year_named(system: str) -> int:
    """The year in a system's name, or the one that it is of where there is none."""
    match = re.search(r"\b20\d\d\b", system)
    return int(match[0]) if match else runtime_named(system).undated


def split_layers(layers: int, stages: int, remainder: Remainder) -> tuple[int, ...] | None:
    """[stages] layers of each stage; None where they divide evenly.

    Embedding and output matrix take about as long as a layer each, so that systems leave one layer out at both ends
    where that makes the rest equal. Otherwise stages are filled one after the other (`last`), or as many as needed of
    those in the middle have one more (`ends`).
    """
    share, rest = divmod(layers, stages)
    if not rest:
        return None
    if stages > 1 and (layers + 2) % stages == 0:
        even = (layers + 2) // stages
        return (even - 1, *[even] * (stages - 2), even - 1)
    if remainder == "last":
        filled = [min(share + 1, max(0, layers - (share + 1) * i)) for i in range(stages)]
        return tuple(filled)
    first = (stages - rest) // 2
    return tuple(share + (first <= i < first + rest) for i in range(stages))
