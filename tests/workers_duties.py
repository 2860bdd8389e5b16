"""What workers do in tests: they import this module, which needs nothing but what a duty imports itself."""

from __future__ import annotations

import os
import signal
import time


def rank_and_pid(rank: int) -> tuple[int, int]:
    return rank, os.getpid()


def fail_in(rank: int, culprit: int, how: str) -> int:
    """One worker ends, by an exception or by a signal; the others would go on for minutes."""
    if rank == culprit:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("what the culprit says")
    time.sleep(300)
    return rank


def train_and_hand_over(rank: int, plan: object, state: dict[str, object] | None, zero: int, rendezvous: str) -> object:
    """One step of SGD with a plan of the decoder, from a whole state if one is given: the loss, the state after it."""
    import pipelines
    import torch
    import torch.distributed as dist

    from automap_models.core.plan import Plan
    from automap_models.run import Pipeline

    assert isinstance(plan, Plan)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=plan.stages[-1].devices[1] + 1)
    try:
        torch.manual_seed(rank if state else 0)  # a state makes up for other values in every process
        model, inputs = pipelines.decoder()
        pipeline = Pipeline(model, plan, inputs, zero=zero)
        if state is not None:
            pipeline.load_state_dict({name: torch.tensor(values) for name, values in state.items()})
        optimizer = torch.optim.SGD([{"params": list(pipeline.parameters())}], lr=0.1)
        batch = {name: tensor.repeat(plan.micro_batches, *[1] * (tensor.dim() - 1)) for name, tensor in inputs.items()}
        loss = pipeline.step(batch)
        optimizer.step()
        return loss, {name: tensor.tolist() for name, tensor in pipeline.state_dict().items()}
    finally:
        dist.destroy_process_group()
