"""The built-in models by name (models.json), and what is known of config.json: words and numbers, without any library.

Some models are written in modules of this package; most are a config.json each, in the folder `published`.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, get_args

from automap_models.errors import BadInput

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[str, ...] = get_args(Dtype)
FACTORY = "a factory of your own (my_package.my_module:make_model), which works for any model"
HAVE_DROPOUT = ("bert", "bloom", "camembert", "distilbert", "electra", "gpt2", "roberta", "xlm-roberta")
"""Families whose models can have dropout here."""
_MODEL_TYPES = """
arcee bamba bart bert blenderbot bloom camembert clip_text_model codegen cohere cohere2 cwm dbrx deepseek_v2
deepseek_v3 deepseek_v32 deepseek_v4 deit dinov2 distilbert dots1 electra ernie4_5 ernie4_5_moe exaone4 exaone_moe
falcon falcon_h1 falcon_mamba gemma gemma2 gemma3_text gemma4_text glm glm4 glm4_moe glm4_moe_lite glm4v_moe_text
glm4v_text glm_moe_dsa gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj granite granitemoe granitemoehybrid
granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 jamba lfm2 lfm2_moe llama llama4_text m2m_100 mamba
mamba2 marian mbart mimo_v2_flash minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral modernbert mpt
mt5 nemotron nemotron_h nomic_bert olmo2 olmo3 olmoe opt pegasus phi phi3 phimoe qwen2 qwen2_5_vl qwen2_5_vl_text
qwen2_moe qwen2_vl qwen2_vl_text qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next qwen3_vl_moe_text
qwen3_vl_text roberta seed_oss siglip_text_model smollm3 solar_open stablelm starcoder2 step3p5 step3p7 t5 vit whisper
xglm xlm-roberta
"""
MODEL_TYPES = tuple(_MODEL_TYPES.split())
"""The values of model_type that are read of a config.json; families.yaml has their fields."""


@dataclass(frozen=True)
class Workload:
    """A model that is built in.

    Attributes:
        what: the model and where its sizes are published.
        parameters: number of trainable parameters.
        published: how many its source says, in its digits; empty: as many.
        active: how many of a mixture its source says that a token passes, some without embeddings; empty: it does not.
        architecture: `module:constant` of this package, a `training.Architecture`; None: that of published/NAME.json.
        batch: samples in a micro-batch unless told otherwise.
        sequence: tokens of a sample unless told otherwise; None for images.
        longest: tokens that the model has positions for; None: any number.
        dtype: what the layers compute in unless told otherwise.
    """

    what: str
    parameters: int
    published: str = ""
    active: str = ""
    architecture: str | None = None
    batch: int = 1
    sequence: int | None = None
    longest: int | None = None
    dtype: str = "float32"


PUBLISHED = Path(__file__).with_name("published")
"""The folder of the config.json files, by name."""
WORKLOADS: dict[str, Workload] = {
    name: Workload(**row) for name, row in json.loads(Path(__file__).with_name("models.json").read_bytes()).items()
}
"""Name → workload, in the order of the list."""
_OTHER_NAMES = {
    "gpt3-6.7b": "gpt3_7b",
    "bloom": "bloom-176b",
    **{"phi-1_5": "phi-1.5", "phi-1": "phi-1.5", "llama-30b": "llama-33b", "codellama-70b": "llama2-70b"},
    "llama-4-scout-17b-16e": "llama4-scout",
    "llama-4-maverick-17b-128e": "llama4-maverick",
}
_OTHER_BEGINNINGS = {
    r"(qwen2\.5|qwen3)-(coder|math)-(?!480b)": r"\1-",
    r"olmo-([23])-\d{4}-": r"olmo\1-",
    "smollm-": "smollm2-",
    "deepseek-r1-distill-llama-": "llama3.1-",
    r"deepseek-r1-distill-qwen-(?!1\.5)": "qwen2.5-",
    "bloomz-": "bloom-",
    "vicuna-": "llama-",
}
"""Pattern → what the name of a model with the same layers begins with."""
_VARIANT = re.compile(
    r"-(instruct|chat|it|base|hf|thinking|deduped|uncased|abf|preview|text"
    r"|v\d+(\.\d+)*|\d+k|\d{4}|bnb|4bit|nf4|bf16|fp8|unsloth)$"
)
"""What a name ends on that says how a model was trained or is stored, and nothing of its layers."""


@lru_cache(maxsize=1024)
def canonical(name: str) -> str | None:
    """A workload's name as the list has it; None where the list has no such model.

    - is as good as _, or as nothing, and capitals are as good as small letters. Of a name of the Hugging Face hub it
    is that of the model with the same layers, whoever has trained it further.

    >>> canonical("gpt2-medium"), canonical("meta-llama/Llama-3.1-8B-Instruct")
    ('gpt2_medium', 'llama3.1-8b')
    """
    owner, _, short = name.rpartition("/")
    short = short.lower().removeprefix("meta-")
    for pattern, beginning in _OTHER_BEGINNINGS.items():
        short = re.sub(f"^{pattern}", beginning, short)
    while short and re.fullmatch(r"([\w-][\w.-]*)?", owner):
        short = _OTHER_NAMES.get(short, short)
        if (key := _listed().get(_plain(short))) is not None:
            return key
        short, variants = _VARIANT.subn("", short)
        if not variants:
            break
    return None


@cache
def _listed() -> dict[str, str]:
    return {_plain(key): key for key in WORKLOADS}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "")


def names() -> tuple[str, ...]:
    """The names that `build` knows."""
    return tuple(WORKLOADS)


def summary(name: str) -> str:
    """One line: what the workload is, its trainable parameters, its defaults.

    Raises:
        BadInput: an unknown name.
    """
    workload = workload_of(name)
    sequence = f" of {workload.sequence} tokens" if workload.sequence else " images"
    parameters = f"{workload.parameters / 1e6:,.1f} M parameters"
    return f"{workload.what}: {parameters}, batch {workload.batch}{sequence}, {workload.dtype}"


def workload_of(name: str) -> Workload:
    """The workload of that name.

    Raises:
        BadInput: there is none.
    """
    full_name = canonical(name)
    if full_name is None:
        raise BadInput(f"unknown model {name!r}", do=nearest(name))
    return WORKLOADS[full_name]


def nearest(name: str) -> str:
    """What to do about a name that no model has: the names that are like it, and where all of them are."""
    short = name.lower().rpartition("/")[2].replace("_", "-")
    close = difflib.get_close_matches(short, WORKLOADS, n=3, cutoff=0.5)
    meant = f"did you mean {', '.join(close)}? " if close else ""
    return f"{meant}automap models lists all {len(WORKLOADS)}, and any model's config.json can be given"
