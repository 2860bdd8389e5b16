"""Where a model comes from, a file, a built-in model or a factory, and the way from there to a profile.

Importing this module imports neither numpy nor a framework.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from automap_models.collection import uncollected
from automap_models.errors import BadInput
from automap_models.resources import exists
from automap_models.user_code import call_factory, user_code
from automap_models.workloads.catalogue import HAVE_DROPOUT, canonical, nearest
from automap_models.workloads.registry import SizedModel, configured, from_factory, sized, step_of

if TYPE_CHECKING:
    from automap_models.core.device import Device
    from automap_models.core.instruction_graph import InstructionGraph
    from automap_models.core.model_work import ModelWork
    from automap_models.core.profile import Profile
    from automap_models.hlo.module import MlirModule, Module
    from automap_models.hlo.step import TrainingStep

Framework = Literal["jax", "torch"]
_FACTORY = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:\w+")
_WORD = re.compile(r"[\w-]+(?:\.\d[\w-]*)?")
_HUB = re.compile(r"[\w-][\w.-]*/" + _WORD.pattern)
"""A name of the Hugging Face hub: owner and model."""
_INTEGERS = re.compile(r"(?:torch\.)?u?i(?:nt)?\d+")
_OTHER_FILES: Mapping[str, tuple[str, str]] = {
    ".py": ("is Python source", "name the factory in it, as in my_package.my_module:make_step"),
    ".pb": ("is a protocol buffer", "give XLA's dump as text: XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_text'"),
}
"""Ending → what such a file is and what to give in its place."""

Begin = Callable[[str], None]
"""Is told what is being done."""
Advance = Callable[[int, int | None, str], None]
"""Is told how much of a step is done, how much there is of it, and what comes next."""


class SourceKind(Enum):
    """What a model comes from; the value says why an option does not apply to it."""

    PROFILE = "is a profile, with times and sizes of its own"
    MODULE = "is an HLO file, with shapes of its own"
    WORKLOAD = "is a built-in model"
    CONFIG = "is a Hugging Face config, built as a JAX model"
    FACTORY = "is a factory"


MODELS = (SourceKind.WORKLOAD, SourceKind.CONFIG, SourceKind.FACTORY)
"""Kinds of sources that are built and traced."""
BUILT = (SourceKind.WORKLOAD, SourceKind.CONFIG)
"""Kinds of sources that we build ourselves."""
OF_CONFIG = ("dropout", "images", "image_tokens", "mtp")
"""Fields of a source that `config_parts.ConfigOptions` has, too."""
OF_KINDS = dict.fromkeys(OF_CONFIG, BUILT)
"""Option of a model that is read → the kinds of sources that have it."""
STEPS = (SourceKind.MODULE, *MODELS)
"""Kinds of sources that have operations."""


@dataclass(frozen=True)
class Source:
    """Where a model comes from, and which training step of it is meant.

    Attributes:
        what: the file (profile, HLO or config.json), built-in model or factory.
        batch: samples in a micro-batch.
        sequence: tokens in a sample.
        dtype: that the layers compute in.
        trainable: patterns of an HLO file's trainable parameters.
        dropout: whether the model has the dropout that its config.json says.
        images, image_tokens, mtp: see workloads.config_parts.ConfigOptions.
        model: what the factory returned, where that is there already; `what` is then its name.
    """

    what: str
    kind: SourceKind
    batch: int | None = None
    sequence: int | None = None
    dtype: str | None = None
    trainable: tuple[str, ...] = ()
    dropout: bool = False
    model: object = None
    images: int | None = None
    image_tokens: int | None = None
    mtp: int | None = None

    @property
    def sizes(self) -> dict[str, Any]:
        """What a built-in model or a factory is called with."""
        return {"batch": self.batch, "sequence": self.sequence, "dtype": self.dtype}

    def returned(self) -> object:
        """What the factory returns.

        Raises:
            BadInput: it cannot be called.
            UserCodeError: it raised.
        """
        return call_factory(self.what, **self.sizes) if self.model is None else self.model


def source_kind(what: str) -> SourceKind:
    """What it is: a name of the list before a file of that name (`./bert48` is the file), others after it.

    Raises:
        BadInput: it looks like a name and is none, or the file cannot be read.
    """
    path, name = Path(what), canonical(what)
    if name is not None and (name == what or not exists(path)):
        return SourceKind.WORKLOAD
    if not exists(path):
        if _FACTORY.fullmatch(what):
            return SourceKind.FACTORY
        if _WORD.fullmatch(what) or _HUB.fullmatch(what):
            raise BadInput("is neither a file nor a known model", where=what, do=nearest(what))
        if ":" in path.name:
            do = "write a factory as my_package.my_module:make_step, without folders and .py"
            raise BadInput("is neither a file nor the name of a factory", where=what, do=do)
    elif path.suffix in _OTHER_FILES:
        reason, do = _OTHER_FILES[path.suffix]
        raise BadInput(reason, where=what, do=do)
    from automap_models.formats.files import holds_module
    from automap_models.workloads.config_json import is_config

    if exists(path) and is_config(path):
        return SourceKind.CONFIG
    if path.is_dir():
        raise BadInput("is a folder without a config.json", where=what, do="give one that has it, or a file")
    return SourceKind.MODULE if holds_module(path) else SourceKind.PROFILE


def require_no_model(what: Path) -> None:
    """Refuse what only `automap profile` understands where a profile is asked for.

    Raises:
        BadInput: it is a config.json, or no file but a model's name or a factory.
    """
    from automap_models.workloads.config_json import is_config

    name = str(what)
    if is_config(what) if exists(what) else canonical(name) or _FACTORY.fullmatch(name):
        raise BadInput(
            "is a model, not a profile", where=name, do=f"run automap profile {name} -o profile.npz first and plan that"
        )


@uncollected()  # importing JAX makes many records, too
def module_of(source: Source, *, all_blocks: bool = False) -> Module:
    """The module of an HLO file, or of the training step of a JAX or a PyTorch model.

    Args:
        all_blocks: trace all blocks of a built-in model, so that XLA can run the module; else a few are repeated.

    Raises:
        BadInput: it cannot be read or traced.
        UserCodeError: the user's own code raised.
    """
    if source.kind in BUILT:
        return _mlir_module(source) if all_blocks else _built(source).module()
    module = _own_module(source)
    inputs = (
        kind for argument, kind in zip(module.arguments, module.argument_types, strict=True) if argument.kind == "input"
    )
    return replace(module, meta={**module.meta, **_sample_tokens((kind.shape, kind.dtype) for kind in inputs)})


def _own_module(source: Source) -> Module:
    if source.kind is SourceKind.FACTORY:
        source = replace(source, model=source.returned())
        if framework_of(source.model) == "torch":
            from automap_models.torch_export.capture import read_example
            from automap_models.torch_export.step import step_module

            example = read_example(source.model, source.what)
            with user_code(source.what):
                return step_module(example.model, example.args, example.kwargs, name=source.what)
    return _mlir_module(source)


def _sample_tokens(inputs: Iterable[tuple[Sequence[int], str]]) -> dict[str, object]:
    """What meta says of a sample's tokens: inputs, of such shapes and types, begin with integers [samples, tokens]."""
    from automap_models.core.microbatch import SAMPLE_TOKENS

    shape, dtype = next(iter(inputs), ((), ""))
    return {SAMPLE_TOKENS: int(shape[1])} if len(shape) == 2 and _INTEGERS.fullmatch(dtype) else {}


def read_model_work(
    what: str, *, sequence: int | None = None, dtype: str | None = None, dropout: bool = False
) -> ModelWork:
    """What a built-in transformer or that of a config.json costs, layer by layer, for one sample.

    Args:
        what: its name, or the file.
        sequence: tokens of a sample; None: the model's own number.
        dtype: what the layers compute in; None: what the model is published in.
        dropout: whether the model has the dropout that its config.json says.

    Raises:
        BadInput: it is neither, the file cannot be read, or an option is out of range.
    """
    return transformer(Source(what, source_kind(what), sequence=sequence, dtype=dtype, dropout=dropout)).work()


def transformer(source: Source) -> SizedModel:
    """The built-in transformer, or the one of a config.json, with its sizes.

    Raises:
        BadInput: it is neither, the file cannot be read, or an option is out of range.
    """
    if source.kind not in BUILT:
        do = "give a built-in model or a Hugging Face config.json"
        raise BadInput(f"{source.kind.value}: a strategy needs a transformer's layers", where=source.what, do=do)
    return _built(source)


def _built(source: Source) -> SizedModel:
    """The built-in model, or the one of a config.json, with its sizes."""
    options = {name: getattr(source, name) for name in OF_CONFIG}
    if source.kind is not SourceKind.CONFIG:
        return sized(source.what, **source.sizes, **options)
    from automap_models.workloads.config_json import read_config

    return configured(read_config(source.what, sequence=source.sequence, **options), **source.sizes)


def notes_of(source: Source, *, traced: bool = True) -> tuple[str, ...]:
    """What the config.json of a model says and nothing prices, in sentences; none of other sources.

    Args:
        traced: whether the model's trace is priced, and not its closed forms.

    Raises:
        BadInput: the file cannot be read, or an option is out of range.
    """
    if source.kind not in BUILT:
        return ()
    model = _built(source)
    return model.traced_notes if traced else model.notes


def training_step_of(source: Source) -> TrainingStep:
    """The JAX training step of a built-in model, a config.json or a factory.

    Raises:
        BadInput: it cannot be built.
        UserCodeError: the factory's own code raised.
    """
    return _built(source).step() if source.kind in BUILT else from_factory(source.what, **source.sizes)


def framework_of(returned: object) -> Framework:
    """What the model that a factory returned is written in; torch is not imported if nobody has."""
    torch = sys.modules.get("torch")
    model = returned[0] if isinstance(returned, tuple) and returned else returned
    return "torch" if torch is not None and isinstance(model, torch.nn.Module) else "jax"


def _mlir_module(source: Source) -> MlirModule:
    """The module of an HLO file, a built-in model, or a JAX model's factory."""
    from automap_models.hlo.adapter import read_module, trace

    if source.kind is SourceKind.MODULE:
        return read_module(source.what, trainable=source.trainable)
    if source.kind in BUILT:
        return trace(_built(source).step())
    step = step_of(source.what, source.returned(), source.dtype)
    with user_code(source.what):
        return trace(step)


def traced(source: Source, begin: Begin, *, all_blocks: bool = False) -> tuple[Module, InstructionGraph]:
    """The module of an HLO file or of a model's training step (see `module_of`), and its instruction graph.

    Raises:
        BadInput: it cannot be read or traced.
        UserCodeError: the user's own code raised.
    """
    begin(f"{'tracing' if source.kind in MODELS else 'reading'} {source.what}")
    from automap_models.hlo.graph import instruction_graph

    module = module_of(source, all_blocks=all_blocks)
    begin(f"costing {len(module.operations):,} instructions")
    return module, instruction_graph(module)


def profile_source(
    source: Source,
    device: Device,
    measuring: Mapping[str, Any] | None,
    begin: Begin,
    advance: Advance,
) -> Profile:
    """The profile of a source: read, or traced and then costed or measured.

    Args:
        device: whose clock the times are by.
        measuring: options of measuring on this machine by name; None: the times are the clock's.

    Raises:
        BadInput: the file, the model or an option cannot be used.
        UserCodeError: the user's own code raised.
    """
    if source.kind is SourceKind.PROFILE:
        from automap_models.formats.files import read_profile

        return read_profile(source.what)
    if source.kind is SourceKind.FACTORY:
        begin(f"building {source.what}")
        source = replace(source, model=source.returned())
        if framework_of(source.model) == "torch":
            return _torch_profile(source, device, measuring, begin)
    profile = _jax_profile(source, device, measuring, begin, advance)
    notes = notes_of(source)
    return replace(profile, meta={**profile.meta, "not_priced": list(notes)}) if notes else profile


def _jax_profile(
    source: Source, device: Device, measuring: Mapping[str, Any] | None, begin: Begin, advance: Advance
) -> Profile:
    from automap_models.hlo.profile import clock_profile, profile_from_graph

    if measuring is None:
        return clock_profile(traced(source, begin)[1], device)
    from automap_models.hlo.measure import measure_times

    module, graph = traced(source, begin, all_blocks=True)
    times_s, meta = measure_times(cast("MlirModule", module), graph=graph, progress=advance, **measuring)
    return profile_from_graph(graph, times_s, {**meta, **described(source)})


def described(source: Source) -> dict[str, object]:
    """What a measured profile or run says of the transformer that it is of, for automap calibrate."""
    if source.kind is SourceKind.FACTORY and framework_of(returned := source.returned()) == "torch":
        from automap_models.torch_export.capture import read_example

        example = read_example(returned, source.what)
        return _described_module(example.model, example.args, example.kwargs)
    if source.kind not in BUILT:
        return {}
    model = _built(source)
    if len(model.labels) < 2:
        return {}
    which = {"built_in": canonical(source.what)}
    if source.kind is SourceKind.CONFIG:
        which = {"config": Path(source.what).read_text()}
    which |= {"dtype": model.dtype}
    return {"transformer": {**which, "sequence": model.labels[-1], "dropout": source.dropout, "flash": False}}


def _torch_profile(source: Source, device: Device, measuring: Mapping[str, Any] | None, begin: Begin) -> Profile:
    from automap_models.torch_export.capture import read_example
    from automap_models.torch_export.measure import measure_module
    from automap_models.torch_export.profile import profile_module

    example = read_example(source.model, source.what)
    step = (example.model, example.args, example.kwargs)
    inputs = (value for value in (*example.args, *example.kwargs.values()) if hasattr(value, "dtype"))
    meta = _sample_tokens((value.shape, str(value.dtype)) for value in inputs)
    if measuring is not None:
        begin(f"measuring {source.what}")
        profile = measure_module(*step, **measuring)
        return replace(profile, meta={**profile.meta, **meta, **_described_module(*step)})
    begin(f"exporting {source.what}")
    profile = profile_module(*step, device=device)
    return replace(profile, meta={**profile.meta, **meta})


def _described_module(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, object]:
    """The same of a model of transformers, whose first input are tokens; nothing of another one."""
    from automap_models.workloads.config_json import described_config

    config = getattr(model, "config", None)
    text = described_config(config)
    tokens = next(iter((*args, *kwargs.values())), None)
    shape = tuple(getattr(tokens, "shape", ()))
    if text is None or len(shape) != 2:
        return {}
    flash = getattr(config, "_attn_implementation", "eager") != "eager"
    which = {"config": text, "dtype": str(next(model.parameters()).dtype).removeprefix("torch.")}
    dropout = getattr(config, "model_type", None) in HAVE_DROPOUT
    return {"transformer": {**which, "sequence": int(shape[1]), "dropout": dropout, "flash": flash}}
