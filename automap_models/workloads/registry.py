"""Training steps of built-in models, of config.json files, and from a user's factory."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from automap_models.core.tuning import FULL, Training
from automap_models.errors import BadInput
from automap_models.user_code import call_factory
from automap_models.workloads.catalogue import DTYPES, PUBLISHED, canonical, workload_of

if TYPE_CHECKING:
    from automap_models.core.model_work import ModelWork
    from automap_models.hlo.module import Module
    from automap_models.hlo.step import TrainingStep
    from automap_models.workloads.config_json import ConfiguredModel
    from automap_models.workloads.sizes import Architecture


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
        labels: shape of the labels, see sizes.JaxArchitecture.
        dtype: what the layers compute in.
        notes: on what its config.json says and nothing prices.
    """

    name: str
    architecture: Architecture
    labels: tuple[int, ...]
    dtype: str
    notes: tuple[str, ...] = ()

    def step(self) -> TrainingStep:
        """Its training step.

        Raises:
            BadInput: jax is not installed.
        """
        require_jax(self.name)
        from .training import training_step

        return training_step(self.name, self.architecture, self.labels, self.dtype)

    def module(self) -> Module:
        """Its traced training step; of a model with many blocks, a few are traced and repeated.

        Raises:
            BadInput: XLA refuses the step, or jax is not installed.
        """
        require_jax(self.name)
        from .training import step_module

        return step_module(self.name, self.architecture, self.labels, self.dtype)

    @property
    def traced_notes(self) -> tuple[str, ...]:
        """The notes, and what of the model its trace does not have."""
        tower = getattr(self.architecture, "tower", None) is not None
        further = ("the trace is of the text alone, without the tower of images",) * tower
        further += ("the trace predicts no further tokens",) * bool(getattr(self.architecture, "predicting_layers", 0))
        windowed = getattr(self.architecture, "windowed_blocks", lambda tokens: 0)(self.labels[-1])
        if not windowed:
            return (*self.notes, *further)
        note = f"{windowed} layers attend to windows and are traced as if to all {self.labels[-1]:,} tokens"
        return (*self.notes, *further, f"{note}, which takes more time and FLOP than the model does")

    def work(self, training: Training = FULL) -> ModelWork:
        """What one sample costs, layer by layer.

        Args:
            training: what of it is trained.

        Raises:
            BadInput: it is no transformer, or has not what is to be trained.
        """
        from .transformer import model_work

        return model_work(self.architecture, self.name, self.labels[-1], self.dtype, training)


def sized(
    name: str,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    dtype: str | None = None,
    **given: Any,
) -> SizedModel:
    """A workload with its sizes; arguments and errors are those of `build`.

    Args:
        given: of a model with a config.json, see config_parts.ConfigOptions.
    """
    workload = workload_of(name)
    batch, dtype = _checked(workload.batch if batch is None else batch, dtype or workload.dtype)
    length = _sequence(name, workload.sequence, workload.longest, sequence)
    labels = (batch,) if length is None else (batch, length)
    full_name = canonical(name) or name
    if workload.architecture is None:
        from .config_json import decode_config

        content = (PUBLISHED / f"{full_name}.json").read_bytes()
        model = decode_config(content, full_name, where=full_name, sequence=length, **given)
        return configured(model, batch=batch, sequence=length, dtype=dtype)
    if option := next((option for option, value in given.items() if value), ""):
        do = "leave it out, or give the model's config.json"
        raise BadInput(f"{name} is built in without it", where=f"`{option}`", do=do)
    module, _, constant = workload.architecture.partition(":")
    if module != "sizes":
        require_jax(name)
    return SizedModel(full_name, getattr(import_module(f".{module}", __package__), constant), labels, dtype)


def configured(
    model: ConfiguredModel, *, batch: int | None = None, sequence: int | None = None, dtype: str | None = None
) -> SizedModel:
    """The model of a Hugging Face config.json that has been read.

    Args:
        batch: samples in a micro-batch; 1 unless another number is given.
        sequence: tokens of a sample; see config_json.py for how many there are unless another number is given.
        dtype: what the layers compute in; what the file says unless another is given.

    Raises:
        BadInput: an option is out of range.
    """
    batch, dtype = _checked(1 if batch is None else batch, dtype or model.dtype)
    length = _sequence(model.name, model.sequence, model.longest, sequence)
    labels = (batch,) if length is None else (batch, length)
    return SizedModel(model.name, model.architecture, labels, dtype, model.notes)


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
