"""The workloads by name, and training steps from a user's factory."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from automap_models.errors import BadInput
from automap_models.user_code import call_factory

if TYPE_CHECKING:
    from automap_models.core.model_work import ModelWork
    from automap_models.core.strategy import TransformerShape
    from automap_models.hlo.module import Module
    from automap_models.hlo.step import TrainingStep
    from automap_models.workloads.training import Architecture

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Workload:
    """A model that is built in.

    Attributes:
        what: the model and where its sizes are published.
        parameters: number of trainable parameters.
        architecture: `module:constant`, a `training.Architecture`.
        batch: samples in a micro-batch unless told otherwise.
        sequence: tokens of a sample unless told otherwise; None for images.
        longest: tokens that the model has positions for; None: any number.
    """

    what: str
    parameters: int
    architecture: str
    batch: int
    sequence: int | None = None
    longest: int | None = None


WORKLOADS: dict[str, Workload] = {
    "bert48": Workload(
        "BERT with 48 encoder layers of hidden size 1024 (DAPPLE, arXiv 2007.01045), masked language model",
        637_483_834,
        "automap_models.workloads.bert:BERT_48",
        batch=16,
        sequence=512,
        longest=512,
    ),
    "t5_base": Workload(
        "T5-base (arXiv 1910.10683)", 222_903_552, "automap_models.workloads.t5:T5_BASE", batch=16, sequence=512
    ),
    "t5_3b": Workload(
        "T5-3B (arXiv 1910.10683)", 2_851_598_336, "automap_models.workloads.t5:T5_3B", batch=16, sequence=512
    ),
    "t5_11b": Workload(
        "T5-11B (arXiv 1910.10683)", 11_307_321_344, "automap_models.workloads.t5:T5_11B", batch=16, sequence=512
    ),
    "vgg19": Workload(
        "VGG-19, configuration E of arXiv 1409.1556", 143_667_240, "automap_models.workloads.vgg:VGG_19", batch=32
    ),
    "resnet50": Workload(
        "ResNet-50 (arXiv 1512.03385), stride in the 3×3 convolutions",
        25_557_032,
        "automap_models.workloads.resnet:RESNET_50",
        batch=32,
    ),
    "gpt2_medium": Workload(
        "GPT-2 medium (Radford et al. 2019)",
        354_823_168,
        "automap_models.workloads.decoder:GPT2_MEDIUM",
        batch=16,
        sequence=512,
        longest=1024,
    ),
    "gpt2_xl": Workload(
        "GPT-2 XL (Radford et al. 2019)",
        1_557_611_200,
        "automap_models.workloads.decoder:GPT2_XL",
        batch=16,
        sequence=512,
        longest=1024,
    ),
    "gpt3_7b": Workload(
        "GPT-3 6.7B (arXiv 2005.14165), attention dense in all layers",
        6_658_404_352,
        "automap_models.workloads.decoder:GPT3_7B",
        batch=16,
        sequence=512,
        longest=2048,
    ),
    "gpt3_13b": Workload(
        "GPT-3 13B (arXiv 2005.14165), attention dense in all layers",
        12_853_386_240,
        "automap_models.workloads.decoder:GPT3_13B",
        batch=16,
        sequence=512,
        longest=2048,
    ),
    "moe": Workload(
        "Switch-Base with 8 experts in every second layer (arXiv 2101.03961)",
        619_339_008,
        "automap_models.workloads.t5:SWITCH_BASE_8",
        batch=16,
        sequence=512,
    ),
}
"""Name → workload, in the order of the list."""


def names() -> tuple[str, ...]:
    """The names that `build` knows."""
    return tuple(WORKLOADS)


def summary(name: str) -> str:
    """One line: what the workload is, its trainable parameters, its defaults.

    Raises:
        BadInput: an unknown name.
    """
    workload = _workload(name)
    sequence = f" of {workload.sequence} tokens" if workload.sequence else " images"
    return f"{workload.what}: {workload.parameters / 1e6:,.1f} M parameters, batch {workload.batch}{sequence}, float32"


def build(
    name: str, *, batch: int | None = None, sequence: int | None = None, dtype: str | None = None
) -> TrainingStep:
    """The training step of a workload.

    Args:
        batch: samples in a micro-batch.
        sequence: tokens of a sample; an encoder-decoder's input and output are both that long.
        dtype: what the layers compute in: float32, bfloat16 or float16.

    Raises:
        BadInput: an unknown name, an option out of range or one that the model does not have, jax is not installed.
    """
    return sized(name, batch=batch, sequence=sequence, dtype=dtype).step()


@dataclass(frozen=True)
class SizedModel:
    """A model and the batch that a step of it reads.

    Attributes:
        name: for people.
        architecture: its sizes.
        labels: shape of the labels, see training.Architecture.
        dtype: what the layers compute in.
    """

    name: str
    architecture: Architecture
    labels: tuple[int, ...]
    dtype: str

    def step(self) -> TrainingStep:
        """Its training step."""
        from .training import training_step

        return training_step(self.name, self.architecture, self.labels, self.dtype)

    def module(self) -> Module:
        """Its traced training step; of a model with many blocks, a few are traced and repeated.

        Raises:
            BadInput: XLA refuses the step.
        """
        from .training import step_module

        return step_module(self.name, self.architecture, self.labels, self.dtype)

    def shape(self) -> TransformerShape:
        """Its sizes, as a strategy divides them.

        Raises:
            BadInput: it is no transformer.
        """
        from .training import required_transformer

        return required_transformer(self.name, self.architecture).shape(self.name, self.labels[-1])

    def work(self) -> ModelWork:
        """What one sample costs, layer by layer.

        Raises:
            BadInput: it is no transformer, or XLA refuses the step.
        """
        from .training import architecture_work

        return architecture_work(self.name, self.architecture, self.labels[-1], self.dtype)


def sized(name: str, *, batch: int | None = None, sequence: int | None = None, dtype: str | None = None) -> SizedModel:
    """A workload with its sizes; arguments and errors are those of `build`."""
    workload = _workload(name)
    batch, dtype = _checked(workload.batch if batch is None else batch, dtype or "float32")
    length = _sequence(name, workload.sequence, workload.longest, sequence)
    labels = (batch,) if length is None else (batch, length)
    require_jax(name)
    module, _, constant = workload.architecture.partition(":")
    return SizedModel(name, getattr(import_module(module), constant), labels, dtype)


def configured(
    path: str,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    dropout: bool = False,
) -> SizedModel:
    """The model of a Hugging Face config.json.

    Args:
        batch: samples in a micro-batch; 1 unless another number is given.
        sequence: tokens of a sample; see config_json.py for how many there are unless another number is given.
        dtype: what the layers compute in; what the file says unless another is given.
        dropout: whether the model has the dropout that the file says.

    Raises:
        BadInput: the file cannot be used, an option is out of range, jax is not installed.
    """
    from .config_json import read_config

    require_jax(path)
    model = read_config(path, dropout=dropout)
    batch, dtype = _checked(1 if batch is None else batch, dtype or model.dtype)
    length = _sequence(model.name, model.sequence, model.longest, sequence)
    return SizedModel(model.name, model.architecture, (batch,) if length is None else (batch, length), dtype)


def _checked(batch: int, dtype: str) -> tuple[int, str]:
    if batch < 1:
        raise BadInput(f"must be at least 1, is {batch}", where="batch")
    if dtype not in DTYPES:
        raise BadInput(f"unknown dtype {dtype!r}", where="dtype", do=f"choose from {', '.join(DTYPES)}")
    return batch, dtype


def from_factory(
    spec: str, *, batch: int | None = None, sequence: int | None = None, dtype: str | None = None
) -> TrainingStep:
    """The training step that a user's factory returns.

    The factory returns a TrainingStep, or a tuple (function, arguments) where `function(*arguments)` is the step,
    `arguments[0]` the trainable parameters, `arguments[-1]` the batch and anything between them state. Arguments are
    pytrees of jax.ShapeDtypeStruct or of arrays; only their shapes are kept. With a tuple, the micro-batch is the
    first dimension of the batch's arrays, and the dtype that of the first parameter unless the option says it.

    Args:
        spec: `my_package.my_module:make_step`, see `user_code.call_factory`.
        batch, sequence, dtype: keyword arguments for the factory; None leaves one out.

    Raises:
        BadInput: the factory cannot be called or returns something else.
        UserCodeError: its code raised.
    """
    require_jax(spec)
    return step_of(spec, call_factory(spec, batch=batch, sequence=sequence, dtype=dtype), dtype)


def step_of(spec: str, returned: object, dtype: str | None) -> TrainingStep:
    """The training step that a factory returned, see `from_factory`.

    Raises:
        BadInput: jax is not installed, or it is something else.
    """
    require_jax(spec)
    from .custom import step_from

    return step_from(spec, returned, dtype)


def _workload(name: str) -> Workload:
    if name not in WORKLOADS:
        raise BadInput(f"unknown model {name!r}", do=f"choose from {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


def _sequence(name: str, default: int | None, longest: int | None, sequence: int | None) -> int | None:
    if sequence is None:
        return default
    if default is None:
        raise BadInput(f"{name} reads images", where="sequence", do="leave the sequence length out")
    if sequence < 1:
        raise BadInput(f"must be at least 1, is {sequence}", where="sequence")
    if longest is not None and sequence > longest:
        raise BadInput(f"{name} has {longest} positions, {sequence} were asked for", where="sequence")
    return sequence


def require_jax(name: str) -> None:
    """What tracing a built-in model takes.

    Raises:
        BadInput: it is not installed; `name` says for which model.
    """
    for package in ("jax", "flax", "optax"):
        if find_spec(package) is None:
            raise BadInput(f"{package} is not installed", where=name, do="pip install 'automap-models[jax]'")
