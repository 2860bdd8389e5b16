"""verl: the batches of an update of its actor, which follow from several keys (workers/fsdp_workers.py).

An update takes `ppo_mini_batch_size` prompts with `rollout.n` responses each. With `use_dynamic_bsz` a micro-batch
holds so many samples as have `ppo_max_token_len_per_gpu` tokens on every device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from automap_models.core.strategy import Strategy
from automap_models.importing.documents import Document, Path, count_at, value_at
from automap_models.importing.setting import Setting

ACTOR = ("actor_rollout_ref", "actor")
MICRO, FORMER = (*ACTOR, "ppo_micro_batch_size_per_gpu"), (*ACTOR, "ppo_micro_batch_size")
MOST_SAMPLES = 4096
"""Of a micro-batch that is looked for."""
TOKENS, DYNAMIC = (*ACTOR, "ppo_max_token_len_per_gpu"), (*ACTOR, "use_dynamic_bsz")


def adjusted(setting: Setting, document: Document) -> Setting:
    """The setting with the samples of an update, and of a micro-batch."""
    values, fields = document.values, dict(setting.fields)
    mini, responses = (
        count_at(values, *path) for path in ((*ACTOR, "ppo_mini_batch_size"), (*ACTOR[:1], "rollout", "n"))
    )
    samples = fields["global_batch"] = (mini or 256) * (responses or 1)
    shared = max(1, fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1))
    dp = max(1, (setting.nodes or 1) * setting.per_node // shared) if setting.per_node else None
    notes = setting.notes
    if value_at(values, *DYNAMIC):
        tokens = (count_at(values, *TOKENS) or 16384) * fields.get("cp", 1)
        most = max(1, tokens // (setting.sequence or tokens))
        of_rank = max(1, samples // (dp or 1))
        fields["micro_batch"] = next(n for n in range(min(most, of_rank, MOST_SAMPLES), 0, -1) if of_rank % n == 0)
        notes += (f"a micro-batch of {tokens} tokens holds {most} samples at their full length",)
    elif dp and value_at(values, *MICRO) is None and (total := count_at(values, *FORMER)):
        fields["micro_batch"] = max(1, total // dp)
    return replace(setting, fields=fields, notes=notes)


def words(document: Document, setting: Setting, strategy: Strategy, new: Mapping[Path, Any]) -> dict[Path, Any]:
    """The values that say another strategy, with a micro-batch as this file says it."""
    after = dict(new)
    if MICRO in after and value_at(document.values, *DYNAMIC):
        del after[MICRO]
        after[TOKENS] = strategy.micro_batch * (setting.sequence or 1) // strategy.cp
    elif MICRO in after and value_at(document.values, *FORMER) is not None:
        after[FORMER] = None
    return after
