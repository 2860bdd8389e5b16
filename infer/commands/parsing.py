"""What the commands' arguments share: their types, groups of them, and what they mean together.

Nothing here imports numpy: help is to be fast."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from automap_models.core.schedules import WARM_UPS
from automap_models.core.units import BYTES_PER_S, LARGEST, SECONDS, SHARE, Unit
from automap_models.errors import BadInput
from automap_models.planners.options import AUTO, COMPETING, DEFAULT_OBJECTIVE, OBJECTIVES, given
from automap_models.requests.words import FIELD_OF
from automap_models.workloads.catalogue import MODEL_TYPES
from automap_models.workloads.source import MODELS, OF_CONFIG, OF_KINDS, STEPS, Source, SourceKind, source_kind

RequestT = TypeVar("RequestT")

APPLIES: Mapping[str, tuple[SourceKind, ...]] = {
    "batch": MODELS,
    "sequence": MODELS,
    "dtype": MODELS,
    **OF_KINDS,
    "trainable": (SourceKind.MODULE,),
    "device": STEPS,
    "measure": STEPS,
    "nodes": STEPS,
    "accelerator": STEPS,
    "host": STEPS,
    "link": STEPS,
}
"""Option → what it can be given for."""


_ALIKE = """
    backend batch beam communication cpus cut_at device dropout dtype equal_replicas executor global_batch
    granularity max_stages measure mesh micro_batches model microbatch_size min_gain min_stage nodes objective out
    pieces plan planner policy rules schedule sequence split split_passes stages state_factor thorough
    trainable verify devices price reserve seed warm_start
    runtime tp pp dp dp_replicate vp cp ep etp tower_tp micro_batch recompute zero sequence_parallel precision
    dispatcher offload layers check snap to topo also pull optimizer states freeze lora quantize loss packed tokens
    gpu_hour max_cost minimize deadline mtbf checkpoint restart images image_tokens mtp imbalance ignore set
    vocabulary
    port host allow_remote static models clusters launch
"""
_DESTINATIONS = {f"--{word.replace('_', '-')}": name for word, name in FIELD_OF.items()}
ARGUMENTS: Mapping[str, str] = {
    **{name: f"--{name.replace('_', '-')}" for name in _ALIKE.split()},
    **{name: option for option, name in _DESTINATIONS.items()},
    "accelerators": "--devices",
    "network": "--devices",
    "ranks": "--pp",
    "reserve_bytes": "--reserve",
    "flash": "--no-flash",
    "gpus": "--gpus",
    "virtual": "--vp",
}
"""Argument of the library, as its messages name it → the commands' option for it."""


def flag(name: str) -> str:
    """An argument's name as it is written: `state_factor` → `--state-factor`."""
    return ARGUMENTS.get(name, f"--{name.replace('_', '-')}")


_MENTION = re.compile(r"`(\w+)(?:=([^`]*))?`")


def in_options(text: str) -> str:
    """A sentence of the library with the commands' options for its arguments: `stages=3` becomes --stages 3."""

    def option(mention: re.Match[str]) -> str:
        name, value = mention.groups()
        if name not in ARGUMENTS:
            return mention[0]
        return ARGUMENTS[name] + (f" {value.strip(chr(39))}" if value else "")

    return _MENTION.sub(option, text)


def refuse(namespace: argparse.Namespace, names: Iterable[str], reason: str, do: str = "leave it out") -> None:
    """Refuse arguments that mean nothing beside the others.

    Raises:
        BadInput: naming the first that is given.
    """
    for name, value in given(namespace, *names).items():
        if value is not False and value != []:
            raise BadInput(reason, where=flag(name), do=do)


def at_least(least: int) -> Callable[[str], int]:
    """An argument's type: a whole number from `least` to LARGEST."""

    def number(text: str) -> int:
        if text.isascii() and text.isdigit() and int(text) >= least:
            if int(text) > LARGEST:
                raise argparse.ArgumentTypeError(f"{text!r} is more than {LARGEST:,}")
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number ≥ {least}")

    return number


def whole_number(text: str) -> int:
    """An argument's type: a whole number of 64 bits, whose limits the library knows."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if abs(number) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} does not fit 64 bits")
    return number


def quantity(unit: Unit, plain_per_base: float = 1.0) -> Callable[[str], float]:
    """An argument's type: a number of that unit, such as `16 GB`, in its base unit.

    Args:
        unit: what it measures.
        plain_per_base: how many of a number without a unit make a base unit: 1e3 where such a number is milliseconds.
    """

    def number(text: str) -> float:
        try:
            return float(text) / plain_per_base
        except ValueError:
            pass
        try:
            return unit.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return number


def positive(unit: Unit) -> Callable[[str], float]:
    """An argument's type: a positive number of that unit."""
    read = quantity(unit)

    def number(text: str) -> float:
        value = read(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} is no positive {unit.what} such as {unit.examples}")
        return value

    return number


def name_argument(text: str) -> str:
    """An argument's type: a name, or a file that an operating system can have."""
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} cannot be the name of a file") from None
    if b"\0" in encoded:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} holds a NUL character, which no file's name does")
    longest = max(map(len, encoded.split(b"/")))
    for part, nbytes, most in (("name", longest, 255), ("path", len(encoded), 4095)):  # what file systems take
        if nbytes > most:
            what = f"a {part} of {nbytes} bytes ({text[:20]}…); a file can have at most {most}"
            raise argparse.ArgumentTypeError(what)
    return text


def file_or_command(text: str) -> str:
    """An argument's type: a name, or a command line, which has spaces and may be longer than a name."""
    return text if " " in text.strip() and "\0" not in text else name_argument(text)


def file_argument(text: str) -> Path:
    """An argument's type: the path of a file."""
    return Path(name_argument(text))


MESH_AXES = ("data", "model")
"""Names of a mesh's axes; core.mesh knows them, too, and a test holds them together."""
MeshSizes = tuple[tuple[str, int], ...]


def mesh_argument(text: str) -> int | MeshSizes:
    """An argument's type: `4`, devices along the one axis, or `data=2,model=4`, named axes."""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= LARGEST:
        return int(text)
    axes = [part.partition("=") for part in text.split(",")]
    names = [name for name, _, _ in axes]
    numbered = all(size.isascii() and size.isdigit() and size[0] != "0" for _, _, size in axes)
    if not numbered or len(set(names)) < len(names) or not set(names) <= set(MESH_AXES):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of devices nor axes such as data=2,model=4")
    if any(int(size) > LARGEST for _, _, size in axes):
        raise argparse.ArgumentTypeError(f"{text!r} has more than {LARGEST:,} devices")
    return tuple((name, int(size)) for name, _, size in axes)


def number_or_auto(text: str) -> int | str:
    """An argument's type: a whole number, or `auto`."""
    if text == AUTO:
        return text
    try:
        return whole_number(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None


class Show(argparse.Action):
    """An option that prints something and ends the command, as --help does.

    Args:
        show: prints it.
    """

    def __init__(self, option_strings: Sequence[str], dest: str, *, show: Callable[[], None], help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)
        self.show = show

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print and end.

        Raises:
            SystemExit: it is printed.
        """
        self.show()
        parser.exit()


_OPTION = re.compile(r"(?m)^ *((?:-\w, )?--[\w-]+)(?: (\S+))?(?:  +|\n)")
"""Flags, a metavar and two spaces or the end of a line, at the beginning of one."""
_TYPES: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("N", "S", "M", "B", "K", "Q"), at_least(1)),
    **dict.fromkeys(("FILE", "FILE|FOLDER"), file_argument),
    **dict.fromkeys(("NAME|FILE", "KIND|FILE", "policy|FILE", "K|CLUSTER", "N×KIND"), name_argument),
    **dict.fromkeys(("cpus", "images", "mtp", "seed", "warmup"), at_least(0)),
    "X": float,
    "SHARE": quantity(SHARE),
    "TIME": quantity(SECONDS),
    "BANDWIDTH": quantity(BYTES_PER_S),
}
"""Metavar, or name of an option → its type, unless it is said otherwise; a text where there is none."""


def add_options(group: argparse._ActionsContainer, text: str, **settings: Mapping[str, Any]) -> None:
    """Add the options that a text lists as help does, one below the other: flags, a metavar, and what it means.

    An option without a metavar, type and choices is a switch; one that may be repeated is a list.

    Args:
        group: takes them.
        text: `--batch N  samples in a micro-batch`; an option begins a line, what follows may go on in further ones.
        settings: what argparse is told beside that, by the argument's name or, of all that have it, by the metavar.
    """
    _, *parts = _OPTION.split(text)
    for flags, metavar, words in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        meaning, option = " ".join(words.split()), flags.split(", ")[-1]
        name = _DESTINATIONS.get(option, option.strip("-").replace("-", "_"))
        options: dict[str, Any] = {"dest": name}
        options |= {"metavar": metavar, "type": _TYPES.get(name, _TYPES.get(metavar))} if metavar else {}
        options |= {**settings.get(metavar, {}), **settings.get(name, {})}
        if "choices" in options and not metavar:
            options["metavar"], meaning = "KIND", f"{', '.join(map(str, options['choices']))}: {meaning}"
        if not {"metavar", "type", "choices", "action"} & options.keys():
            options["action"] = "store_true"
        elif meaning.endswith("may be repeated"):
            options["action"] = "append"
        group.add_argument(*flags.split(", "), help=meaning, **options)


def _print_clusters() -> None:
    from ..reports.text import print_clusters

    print_clusters()


def add_topo(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """--topo and --gpus: which cluster is meant; --list-clusters: which are known by name."""
    text = """
        --gpus N×KIND     32xh100, in the usual nodes; 8x4xh100: 8 nodes of 4; 16xh100+16xa100: of both kinds in one
            job; 32xh100,64xa100: to choose among
        --topo NAME|FILE  a shipped cluster (A, B, C, …; see --list-clusters) or a YAML file
    """
    add_options(parser.add_mutually_exclusive_group(required=required), text, gpus={"dest": "topo"})
    listed = "--list-clusters  print the shipped clusters and exit"
    add_options(parser, listed, list_clusters={"action": Show, "show": _print_clusters})


STEP = """
    --batch N            samples in a micro-batch
    --sequence N         tokens in a sample
    --dtype NAME         type that the layers compute in: float32, bfloat16, float16
    --dropout            of bert and its relatives, bloom and gpt2: as much as the config.json says
    --images N           of a sample, for a model with a tower of images (default 1; 0: text alone)
    --image-tokens N     of the text for an image, in the mean, where it may have any size (default: a million pixels')
    --mtp N              layers that predict further tokens (default: as many as the model's config.json says)
    --trainable PATTERN  of HLO files: parameters that are trained, such as 'params/*'; may be repeated
"""
"""Options: which training step is meant."""
DEVICE = """
    --device NAME|FILE  what the cluster is made of (default: what its description says, else v100)
"""
"""Option: by whose clock a model's times are."""
PROFILED_SIZE = """
    --microbatch-size N  samples in the profiled micro-batch of a silent profile
"""
"""Option: of a profile that does not say it itself."""
STATE_FACTOR = """
    --state-factor X  bytes of training state per byte of parameters (default: Adam's, 4 of fp32, 8 of 16 bits with
        fp32 copies; 2: Adafactor or SGD in fp32)
"""
"""Option: how much training state a byte of parameters brings."""
RESTRICTIONS = """
    --equal-replicas         every stage gets equally many devices, as a device mesh has
    --cut-at PATTERN|blocks  where layers end that match, such as 'model.layers.*', or repeated blocks
"""
"""Options: what frameworks may ask of a plan's stages."""
SEED = """
    --seed N  of random draws (default 0)
"""


def kinds_of_models(names: str) -> str:
    """What MODEL|FILE stands for where operations are needed, as lines of an epilog; `names` are built-in models."""
    return f"""MODEL|FILE is one of
  a built-in model           {names}
  Hugging Face's config.json path/to/config.json of {len(MODEL_TYPES)} model_types (automap models --families)
  a factory                  my_package.my_module:make_step returns a JAX training step and its arguments' shapes,
                             or an nn.Module and its inputs
  HLO or StableHLO           XLA's *before_optimizations.txt, jax.jit(step).lower(…).as_text(debug_info=True)"""


def add_objective(group: argparse._ArgumentGroup, schedules: Iterable[str] = WARM_UPS) -> None:
    """What a plan shall make small.

    Args:
        schedules: that the command knows; plans are made under those of WARM_UPS.
    """
    others = sorted({*schedules} - {*WARM_UPS})
    further = f"; of a strategy also {', '.join(others)}" if others else ""
    text = f"""
        --schedule NAME    that the step runs under: {", ".join(WARM_UPS)} (default: the better of
            {" and ".join(COMPETING)}){further}
        --objective        the simulated step (default), or Auto-MAP's length L, which knows no schedule
        --min-gain SHARE   what each harder thing has to save of the step (stages, cuts inside blocks, unequal devices;
            of a strategy tp, cp, pp, unequal layers, …): '5 %%' or 0.05 (default 2 %%; 0: the shortest plan)
        --min-stage SHARE  of an even share of the work, which each stage has at least (default 25 %%; 0: none)
    """
    objective = {"choices": OBJECTIVES, "default": DEFAULT_OBJECTIVE}
    add_options(group, text, schedule={"choices": schedules}, objective=objective)


def filled(request_type: type[RequestT], namespace: object, **others: Any) -> RequestT:
    """A record whose fields are the arguments, or fields of a request, of the same names, but for `others`."""
    names = [field.name for field in fields(request_type)]  # type: ignore[arg-type]
    return request_type(**{name: getattr(namespace, name) for name in names if name not in others}, **others)


def source_of(options: Mapping[str, Any]) -> Source:
    """The source that a command's arguments name, all of which apply to it.

    Args:
        options: all arguments by name, `what` and those of APPLIES that the command has among them.

    Raises:
        BadInput: `what` looks like a name and is none, the file cannot be read, or an option does not apply.
    """
    what = str(options["what"])
    kind = source_kind(what)
    for name, kinds in APPLIES.items():
        if options.get(name) not in (None, False, ()) and kind not in kinds:
            raise BadInput(f"does not apply: {what} {kind.value}", where=flag(name), do="leave it out")
    sizes = options["batch"], options["sequence"], options["dtype"], tuple(options["trainable"] or ())
    return Source(what, kind, *sizes, **{name: options[name] for name in OF_CONFIG})
