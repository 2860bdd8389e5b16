"""FSDP2 inside a stage: its replicas share weights, gradients and the optimiser's state, as ZeRO does.

    replica 0   ▓░░░  ─┐ gathered before its first pass  ▓▓▓▓ ─┐ gradients summed and scattered  ▓░░░
    replica 1   ░▓░░  ─┘                                 ▓▓▓▓ ─┘ after its last one              ░▓░░

A stage is one unit of `fully_shard`: all of its weights are gathered together. Under ZeRO-2 they stay until the step
ends. Under ZeRO-3 a replica gives them back after every forward pass and gathers them again for the backward pass.
Gradients are kept whole until the last pass of the step and reduced once, as PipelineStage of torch does.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from automap_models.errors import BadInput


def require_zero(zero: int) -> None:
    """Refuse a stage of ZeRO that torch's FSDP2 is not.

    Raises:
        BadInput: it is.
    """
    if zero not in (0, 2, 3):  # DDP, and FSDP2 that keeps gathered weights for a step or for a pass
        what = f"torch's fully_shard shares weights and gradients, and is not ZeRO-{zero}"
        raise BadInput(what, where="`zero`", do="take 0, 2 or 3")


def shard(
    module: nn.Module, replicas: DeviceMesh, zero: int, entire: Collection[nn.Parameter] = (), *, summed: bool = False
) -> FSDPModule:
    """Shares the parameters of a stage's module among its replicas, in place.

    Args:
        module: is called for every forward pass.
        replicas: of the stage.
        zero: 2 or 3.
        entire: parameters that every replica keeps, and reduces itself.
        summed: whether gradients are summed over replicas; else the mean is taken, as DDP does.
    """
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]  # it names groups of earlier process groups
    warnings.filterwarnings("ignore", ".*returned a view tensor", UserWarning)  # nothing changes what a stage returns
    sharded = fully_shard(module, mesh=replicas, reshard_after_forward=zero == 3, ignored_params=set(entire))
    sharded.set_force_sum_reduction_for_comms(True)  # gloo has no other
    if summed:
        sharded.set_gradient_divide_factor(1.0)
    return sharded


def keep_gradients(module: FSDPModule) -> None:
    """Until `reduce_gradients`, backward passes add to whole gradients and send nothing."""
    module.set_is_last_backward(False)
    module.set_reshard_after_backward(False)
    module.set_requires_gradient_sync(False)


def reduce_gradients(module: FSDPModule) -> None:
    """Each replica gets its part of the sum of the gradients, and gives the weights back."""
    _PipelineStageBase.perform_reduce_grad(SimpleNamespace(submod=module), 1)  # type: ignore[arg-type]


def full_tensor(tensor: Tensor) -> Tensor:
    """A shared tensor as a whole, for which all replicas have to ask; others as they are."""
    with torch.no_grad():
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_of(tensor: Tensor) -> Tensor:
    """This replica's part of a tensor, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def assign(tensor: Tensor, value: Tensor) -> None:
    """Put a whole value in a tensor, or this replica's part of it."""
    if isinstance(tensor, DTensor):
        value = distribute_tensor(
            value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None
        ).to_local()
    local_of(tensor.detach()).copy_(value)
