"""A plan in the words of torch.distributed.pipelining."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.pipelining import SplitPoint

from automap_models.core.profile import Profile
from automap_models.errors import BadInput
from automap_models.torch_export.step import FRAMEWORK
from automap_models.torch_export.structure import BEFORE


def split_spec(profile: Profile, cuts: Sequence[int]) -> dict[str, SplitPoint]:
    """What `torch.distributed.pipelining.pipeline(model, mb_args, split_spec=…)` takes.

    Args:
        profile: of a torch model, made by automap profile.
        cuts: last instruction of each stage but the last, as in plan.json.

    Raises:
        BadInput: a profile that was not made from a torch model, or a cut out of range.
    """
    if profile.meta.get("framework") != FRAMEWORK:
        raise BadInput("its instructions are no modules of torch", where=profile.model, do="profile a torch model")
    spec = {}
    for cut in cuts:
        if not 0 <= cut < len(profile) - 1:
            raise BadInput(f"there is no cut after instruction {cut}", where=profile.model, do="plan it again")
        name = profile.name(cut)
        spec[name.removeprefix(BEFORE)] = SplitPoint.BEGINNING if name.startswith(BEFORE) else SplitPoint.END
    return spec
