"""The built-in models by name, and what is known of config.json: words and numbers, without any library.

Some models are written in modules of this package; most are a config.json each, in the folder `published`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from automap_models.errors import BadInput

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[str, ...] = get_args(Dtype)
FACTORY = "a factory of your own (my_package.my_module:make_model), which works for any model"
HAVE_DROPOUT = ("bert", "bloom", "gpt2")
"""Families whose models can have dropout here."""
_MODEL_TYPES = """
bert bloom deepseek_v2 deepseek_v3 gemma2 gemma3_text gpt2 gpt_neox llama mistral mixtral olmo2 phi3 qwen2 qwen3
qwen3_moe stablelm starcoder2 t5
"""
MODEL_TYPES = tuple(_MODEL_TYPES.split())
"""The values of model_type that are read of a config.json; config_families and config_rotary have their fields."""


@dataclass(frozen=True)
class Workload:
    """A model that is built in.

    Attributes:
        what: the model and where its sizes are published.
        parameters: number of trainable parameters.
        architecture: `module:constant` of this package, a `training.Architecture`; None: that of published/NAME.json.
        batch: samples in a micro-batch unless told otherwise.
        sequence: tokens of a sample unless told otherwise; None for images.
        longest: tokens that the model has positions for; None: any number.
        dtype: what the layers compute in unless told otherwise.
    """

    what: str
    parameters: int
    architecture: str | None
    batch: int
    sequence: int | None = None
    longest: int | None = None
    dtype: str = "float32"


def _published(
    what: str, parameters: int, sequence: int, longest: int | None = None, dtype: str = "float32"
) -> Workload:
    """A model of the folder `published`; the numbers are what its file says, or makes."""
    return Workload(what, parameters, None, 1, sequence, longest, dtype)


WORKLOADS: dict[str, Workload] = {
    "bert48": Workload(
        "BERT with 48 encoder layers of hidden size 1024 (DAPPLE, arXiv 2007.01045), masked language model",
        637_483_834,
        "bert:BERT_48",
        16,
        512,
        512,
    ),
    "t5_base": Workload("T5-base (arXiv 1910.10683)", 222_903_552, "t5:T5_BASE", 16, 512),
    "t5_3b": Workload("T5-3B (arXiv 1910.10683)", 2_851_598_336, "t5:T5_3B", 16, 512),
    "t5_11b": Workload("T5-11B (arXiv 1910.10683)", 11_307_321_344, "t5:T5_11B", 16, 512),
    "vgg19": Workload("VGG-19, configuration E of arXiv 1409.1556", 143_667_240, "convolutional:VGG_19", 32),
    "resnet50": Workload(
        "ResNet-50 (arXiv 1512.03385), stride in the 3×3 convolutions", 25_557_032, "convolutional:RESNET_50", 32
    ),
    "gpt2_medium": Workload("GPT-2 medium (Radford et al. 2019)", 354_823_168, "decoder:GPT2_MEDIUM", 16, 512, 1024),
    "gpt2_xl": Workload("GPT-2 XL (Radford et al. 2019)", 1_557_611_200, "decoder:GPT2_XL", 16, 512, 1024),
    "gpt3_7b": Workload(
        "GPT-3 6.7B (arXiv 2005.14165), attention dense in all layers", 6_658_404_352, "decoder:GPT3_7B", 16, 512, 2048
    ),
    "gpt3_13b": Workload(
        "GPT-3 13B (arXiv 2005.14165), attention dense in all layers", 12_853_386_240, "decoder:GPT3_13B", 16, 512, 2048
    ),
    "moe": Workload(
        "Switch-Base with 8 experts in every second layer (arXiv 2101.03961)", 619_339_008, "t5:SWITCH_BASE_8", 16, 512
    ),
    **{
        f"rnnlm_{layers}": Workload(
            f"RNNLM with {layers} LSTMs of 2048 units (arXiv 1602.02410), unrolled over time",
            parameters,
            f"recurrent:RNNLM_{layers}",
            64,
            20,
        )
        for layers, parameters in ((2, 108_095_248), (4, 175_220_496), (8, 309_470_992))
    },
    **{
        f"gnmt_{layers}": Workload(
            f"GNMT with {layers} + {layers} LSTMs of 1024 units (arXiv 1609.08144), unrolled over time",
            parameters,
            f"recurrent:GNMT_{layers}",
            64,
            40,
        )
        for layers, parameters in ((2, 154_979_584), (4, 196_939_008), (8, 280_857_856))
    },
    "wavenet_2x18": Workload(
        "WaveNet with 2 stacks of 18 layers (arXiv 1609.03499)", 4_316_160, "wavenet:WAVENET_2_18", 4, 4096
    ),
    "wavenet_4x36": Workload(
        "WaveNet with 4 stacks of 36 layers (arXiv 1609.03499)", 16_771_584, "wavenet:WAVENET_4_36", 4, 4096
    ),
    "inception_v3": Workload(
        "Inception-v3 (arXiv 1512.00567) without the auxiliary head", 23_834_568, "convolutional:INCEPTION_V3", 32
    ),
    **{
        f"transformer_xl_{layers}": Workload(
            f"Transformer-XL with {layers} layers of width 512 (arXiv 1901.02860), four segments of 128",
            parameters,
            f"transformer_xl:TRANSFORMER_XL_{layers}",
            16,
            512,
        )
        for layers, parameters in ((2, 6_930_636), (4, 13_755_596), (8, 27_405_516))
    },
    "amoebanet_d": Workload(
        "AmoebaNet-D with 18 normal cells and 208 filters (arXiv 1802.01548; GPipe, arXiv 1811.06965)",
        81_505_540,
        "amoebanet:AMOEBANET_D",
        32,
    ),
    "gpt2": _published("GPT-2 (Radford et al. 2019)", 124_439_808, 1024, 1024),
    "gpt2-large": _published("GPT-2 large (Radford et al. 2019)", 774_030_080, 1024, 1024),
    "gpt3-175b": _published(
        "GPT-3 175B (arXiv 2005.14165), attention dense in all layers", 174_604_259_328, 2048, 2048
    ),
    "gpt-neox-20b": _published("GPT-NeoX-20B (arXiv 2204.06745)", 20_554_567_680, 2048, dtype="float16"),
    "bloom-7b1": _published("BLOOM 7.1B (arXiv 2211.05100)", 7_069_016_064, 2048, dtype="float16"),
    "bloom-176b": _published("BLOOM 176B (arXiv 2211.05100)", 176_247_271_424, 2048, dtype="bfloat16"),
    "bert-base": _published("BERT-base (arXiv 1810.04805), masked language model", 109_514_298, 512, 512),
    "bert-large": _published("BERT-large (arXiv 1810.04805), masked language model", 335_174_458, 512, 512),
    "t5-small": _published("T5-small (arXiv 1910.10683)", 60_506_624, 512),
    "t5-large": _published("T5-large (arXiv 1910.10683)", 737_668_096, 512),
    "llama2-7b": _published("Llama 2 7B (arXiv 2307.09288)", 6_738_415_616, 4096, dtype="bfloat16"),
    "llama2-13b": _published("Llama 2 13B (arXiv 2307.09288)", 13_015_864_320, 4096, dtype="bfloat16"),
    "llama2-70b": _published("Llama 2 70B (arXiv 2307.09288)", 68_976_648_192, 4096, dtype="bfloat16"),
    "llama3-8b": _published("Llama 3 8B (arXiv 2407.21783)", 8_030_261_248, 8192, dtype="bfloat16"),
    "llama3-70b": _published("Llama 3 70B (arXiv 2407.21783)", 70_553_706_496, 8192, dtype="bfloat16"),
    "llama3-405b": _published("Llama 3.1 405B (arXiv 2407.21783)", 405_853_388_800, 8192, dtype="bfloat16"),
    "mistral-7b": _published("Mistral 7B (arXiv 2310.06825)", 7_241_732_096, 8192, dtype="bfloat16"),
    "mixtral-8x7b": _published("Mixtral 8x7B (arXiv 2401.04088)", 46_702_792_704, 8192, dtype="bfloat16"),
    "mixtral-8x22b": _published("Mixtral 8x22B (Mistral AI 2024)", 140_620_634_112, 8192, dtype="bfloat16"),
    "qwen2.5-7b": _published("Qwen2.5 7B (arXiv 2412.15115)", 7_615_616_512, 8192, dtype="bfloat16"),
    "qwen2.5-14b": _published("Qwen2.5 14B (arXiv 2412.15115)", 14_770_033_664, 8192, dtype="bfloat16"),
    "qwen2.5-32b": _published("Qwen2.5 32B (arXiv 2412.15115)", 32_763_876_352, 8192, dtype="bfloat16"),
    "qwen2.5-72b": _published("Qwen2.5 72B (arXiv 2412.15115)", 72_706_203_648, 8192, dtype="bfloat16"),
    "qwen3-8b": _published("Qwen3 8B (arXiv 2505.09388)", 8_190_735_360, 8192, dtype="bfloat16"),
    "qwen3-14b": _published("Qwen3 14B (arXiv 2505.09388)", 14_768_307_200, 8192, dtype="bfloat16"),
    "qwen3-32b": _published("Qwen3 32B (arXiv 2505.09388)", 32_762_123_264, 8192, dtype="bfloat16"),
    "qwen3-30b-a3b": _published("Qwen3 30B-A3B (arXiv 2505.09388)", 30_532_122_624, 8192, dtype="bfloat16"),
    "qwen3-235b-a22b": _published("Qwen3 235B-A22B (arXiv 2505.09388)", 235_093_634_560, 8192, dtype="bfloat16"),
    "gemma2-9b": _published("Gemma 2 9B (arXiv 2408.00118)", 9_241_705_984, 8192, dtype="bfloat16"),
    "gemma2-27b": _published("Gemma 2 27B (arXiv 2408.00118)", 27_227_128_320, 8192, dtype="bfloat16"),
    "phi3-medium": _published("Phi-3 medium (arXiv 2404.14219)", 13_960_238_080, 4096, dtype="bfloat16"),
    "phi4": _published("Phi-4 (arXiv 2412.08905)", 14_659_507_200, 8192, dtype="bfloat16"),
    "olmo2-7b": _published("OLMo 2 7B (arXiv 2501.00656)", 7_298_617_344, 4096, dtype="bfloat16"),
    "olmo2-13b": _published("OLMo 2 13B (arXiv 2501.00656)", 13_716_198_400, 4096, dtype="bfloat16"),
    "starcoder2-15b": _published("StarCoder2 15B (arXiv 2402.19173)", 15_957_889_024, 8192, dtype="bfloat16"),
    "deepseek-v2-lite": _published("DeepSeek-V2-Lite (arXiv 2405.04434)", 15_706_484_224, 8192, dtype="bfloat16"),
    "deepseek-v2": _published("DeepSeek-V2 (arXiv 2405.04434)", 235_741_434_880, 8192, dtype="bfloat16"),
    "deepseek-v3": _published(
        "DeepSeek-V3 (arXiv 2412.19437), without its layers that predict further tokens",
        671_026_404_352,
        8192,
        dtype="bfloat16",
    ),
}
"""Name → workload, in the order of the list; the numbers behind an architecture are batch, sequence and longest."""
_OTHER_NAMES = {"gpt3-6.7b": "gpt3_7b"}


def canonical(name: str) -> str | None:
    """A workload's name as the list has it, where - is as good as _; None for any other text.

    >>> canonical("gpt2-medium")
    'gpt2_medium'
    """
    name = _OTHER_NAMES.get(name, name)
    return name if name in WORKLOADS else next((own for own in WORKLOADS if _plain(own) == _plain(name)), None)


def _plain(name: str) -> str:
    return name.replace("_", "-")


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
    known = canonical(name)
    if known is None:
        raise BadInput(f"unknown model {name!r}", do=f"choose from {', '.join(WORKLOADS)}")
    return WORKLOADS[known]
