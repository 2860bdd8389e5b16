"""Megatron-LM: a command line, or the script that holds it (shell.py), with the words of `export.megatron`.

    stages   --pipeline-model-parallel-layout, or --num-layers-per-virtual-pipeline-stage, or …-virtual-stages-…
             with --decoder-first-…, --decoder-last-… and --account-for-…: [pp·vp] layers in the order of the model

Defaults are those of training/arguments.py and TransformerConfig of Megatron-Core 0.16. megatron.yaml lists arguments
that cannot matter, pairs that Megatron refuses at start-up, and what is priced as if it were not there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path as File
from typing import Any

import yaml

from automap_models.core.framework import ModelFacts
from automap_models.core.strategy import ONCE_A_NODE, Strategy, TransformerShape
from automap_models.core.sublayer_sizes import Latent, Mixture, Rotary
from automap_models.cost.measured_step import MeasuredModel
from automap_models.errors import BadInput
from automap_models.export.megatron import COUNTS, LIMITS, PRECISIONS, SIZES, arguments
from automap_models.export.model_blocks import BlockPlan
from automap_models.importing.setting import Rewrite, Setting, contradiction
from automap_models.importing.shell import Script, Span, Word

LAYERS, LAYOUT = "--num-layers", "--pipeline-model-parallel-layout"
CHUNK, CHUNKS = "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"
ENDS = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
COUNTED_ENDS = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
STAGES = (LAYOUT, CHUNK, CHUNKS, *ENDS, *COUNTED_ENDS)
RECOMPUTE = ("--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--recompute-activations")
DISPATCHER = ("--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend", "--moe-enable-deepep")
LATENT: Mapping[str, tuple[str, int | None]] = {
    "query_rank": ("--q-lora-rank", 512),
    "rank": ("--kv-lora-rank", 512),
    "plain_width": ("--qk-head-dim", 128),
    "rotary": ("--qk-pos-emb-head-dim", 64),
    "value_width": ("--v-head-dim", 128),
}
"""Field of Latent → its argument and what it is without."""
MODEL = (
    *("--group-query-attention", "--swiglu", "--position-embedding-type", "--use-rotary-position-embeddings"),
    *("--squared-relu", "--kv-channels", "--max-position-embeddings", "--vocab-size", "--padded-vocab-size"),
    *("--tokenizer-type", "--untie-embeddings-and-output-weights", "--multi-latent-attention", "--mtp-num-layers"),
    *("--moe-ffn-hidden-size", "--moe-router-topk", "--moe-shared-expert-intermediate-size", "--moe-layer-freq"),
    *(argument for argument, _ in LATENT.values()),
)
NODES, DEVICES = ("--nnodes", "--nodes", "--num-nodes"), ("--nproc-per-node", "--gpus-per-node", "--num-gpus")
CHANGED: Mapping[str, tuple[str, ...]] = {
    **{argument: (name,) for name, argument in COUNTS.items()},
    **dict.fromkeys(STAGES, ("pp", "vp", "layers")),
    **dict.fromkeys(RECOMPUTE, ("recompute", "recompute_blocks")),
    "--use-distributed-optimizer": ("zero",),
    "--sequence-parallel": ("sequence_parallel",),
}
"""Argument → fields of a strategy that it says; one that says none of them anew stays as it is."""
SEARCHED = frozenset(name for names in CHANGED.values() for name in names) | {"dp", "schedule"} - {"global_batch"}
READ = (LAYERS, *SIZES.values(), *MODEL, *NODES, *DEVICES, *DISPATCHER, *CHANGED, "--optimizer")
READ += tuple(word for words in PRECISIONS.values() for word in words if word.startswith("--"))
VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "BertWordPieceLowerCase": 30522}
FAMILIES = {"pretrain_gpt": "GPT2BPETokenizer", "--": "GPT2BPETokenizer", "pretrain_bert": "BertWordPieceLowerCase"}
"""Beginning of a program's name → the tokenizer that a vocabulary's file is of."""
OTHERS = ("t5", "retro", "mamba", "hybrid", "vlm", "vision", "ict", "bridge")
"""In names of programs whose models other arguments describe."""
LARGEST_LAYOUT = 10_000
_REPEATED = re.compile(r"\(([^()*]*)\)\*(\d{1,4})|([EtmL])\*(\d{1,4})")


@dataclass(frozen=True)
class Arguments:
    """Arguments by name, underscores as dashes.

    Attributes:
        text: of the script or the command.
        words: the argument's own and those of its value.
    """

    text: str
    words: Mapping[str, Sequence[Word]]

    def __contains__(self, name: str) -> bool:
        return name in self.words

    def line(self, name: str) -> str:
        """Where an argument stands."""
        return f"line {self.text.count(chr(10), 0, self.words[name][0].site[0]) + 1}"

    def value(self, name: str) -> str | None:
        """What an argument is; None where it is not given.

        Raises:
            BadInput: it has no value, or that of a variable that nothing sets.
        """
        if name not in self.words:
            return None
        text = self.words[name][1].text if len(self.words[name]) > 1 else ""
        if not text or "$" in text:
            what = f"`{name}` is {text or 'nothing'}, which the text does not say"
            variable = re.sub(r"\W.*", "", text.lstrip("${")) or "NAME"
            raise BadInput(what, where=self.line(name), do=f"give `set` {variable}=VALUE")
        return text

    def count(self, name: str) -> int | None:
        """A whole number; None where it is not given.

        Raises:
            BadInput: it is something else.
        """
        text = self.value(name)
        if text is None or (text.isascii() and text.isdigit() and len(text) < 16):
            return None if text is None else int(text)
        raise BadInput(f"`{name}` is {text!r}, which is no number", where=self.line(name), do="give a whole number")


@cache
def listed() -> Mapping[str, Any]:
    """The lists of megatron.yaml."""
    lists: Mapping[str, Any] = yaml.safe_load(File(__file__).with_suffix(".yaml").read_text("utf-8"))
    return lists


def parsed(text: str, variables: Mapping[str, str]) -> tuple[Arguments, Script]:
    """The arguments of the command that trains, with what Slurm is told.

    Raises:
        BadInput: one is given twice, with two values.
    """
    script = Script(text, variables)
    slurm = [Script(line[1], {}).statements for line in re.finditer(r"(?m)^#SBATCH +(--.*)$", text)]
    launching = [word for statements in slurm for words in statements for word in words]
    begin = next((i for i, word in enumerate(script.command) if word.text.endswith(".py")), 0)
    launching += script.command[:begin]
    words = {name: entry for name, entry in _arguments(launching) if name in (*NODES, *DEVICES)}
    read = Arguments(text, words)
    for name, entry in _arguments(script.command[begin:]):
        before = words.get(name)
        if before is not None and before[0].site != entry[0].site and _texts(before) != _texts(entry):
            first = read.line(name)
            one, other = (" ".join((name, *_texts(words))) for words in (before, entry))
            raise contradiction(one, other, first, Arguments(text, {name: entry}).line(name))
        words[name] = entry
    return read, script


def _texts(words: Sequence[Word]) -> list[str]:
    return [word.text for word in words[1:]]


def _arguments(words: Sequence[Word]) -> Iterator[tuple[str, list[Word]]]:
    """Each argument with its words; `--name=value` as two of one site."""
    entry: list[Word] = []
    for word in words:
        if not word.text.startswith("--") or word.text == "--":
            entry += [word] if entry else []
            continue
        if entry:
            yield entry[0].text, entry
        name, equals, value = word.text.partition("=")
        begin = word.site[0] + len(name) + 1
        span: Span = (begin, word.site[1])
        entry = [word._replace(text=name.replace("_", "-"), site=(word.site[0], begin - 1) if equals else word.site)]
        entry += [Word(value, span, span)] if equals else []
    if entry:
        yield entry[0].text, entry


def read(text: str, variables: Mapping[str, str], vocabulary: int | None) -> Setting:
    """What a command line, or a script that holds one, says.

    Args:
        variables: that are set outside.
        vocabulary: of the tokenizer, where the text does not say it.

    Raises:
        BadInput: it contradicts itself, or a value is no number.
    """
    given, script = parsed(text, variables)
    fields: dict[str, Any] = {name: count for name, argument in COUNTS.items() if (count := given.count(argument))}
    layers = given.count(LAYERS)
    fields |= _stages(given, fields.get("pp", 1), layers) | _recomputation(given, fields)
    fields["zero"] = int("--use-distributed-optimizer" in given)
    fields["sequence_parallel"] = "--sequence-parallel" in given and fields.get("tp", 1) > 1
    fields["precision"] = _precision(given)
    if given.count(SIZES["experts"]):
        fields.setdefault("etp", fields.get("tp", 1))
    if fields.get("ep", 1) * fields.get("etp", 1) > 1 and fields.get("ep", 1) > 1:
        fields["dispatcher"] = _dispatcher(given)
    lists = listed()
    known = (*READ, *lists["noted"], *lists["gone"])
    unread = {name: given.line(name) for name in given.words if name not in known and not _cannot_matter(name)}
    if (given.value("--optimizer") or "adam") != "adam":
        unread["--optimizer"] = given.line("--optimizer")
    command = [word.text for word in script.command] or [""]
    program = next((File(word).name for word in command if word.endswith(".py")), command[0])
    if not (is_megatron := program.startswith(("pretrain", "--"))):
        unread[program] = "a program with defaults of its own"
    model, lacking = _model(given, layers, vocabulary, program)
    notes = [f"`{name}`: {note}" for name, note in lists["noted"].items() if name in given]
    notes += [
        f"line {text.count(chr(10), 0, place) + 1} is left out: only running decides whether it counts"
        for place in script.skipped
    ]
    return Setting(
        limits=LIMITS,
        runtime="megatron",
        fields=fields,
        searched=SEARCHED,
        text=text,
        rewrite=_rewrite(given, fields, layers),
        model=model,
        lacking=lacking,
        sequence=given.count(SIZES["sequence"]),
        nodes=next((given.count(name) for name in NODES if name in given), None),
        per_node=next((given.count(name) for name in DEVICES if name in given), None),
        refusals=tuple(_refusals(given)) if is_megatron else (),
        unread=unread,
        notes=tuple(dict.fromkeys(notes)),
    )


def _cannot_matter(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in listed()["cannot matter"])


def _precision(given: Arguments) -> str:
    if "--fp16" in given and "--bf16" in given:
        raise contradiction("--fp16", "--bf16", given.line("--fp16"), given.line("--bf16"))
    flags = {name: [word for word in words if word.startswith("--")] for name, words in PRECISIONS.items()}
    return next(name for name, words in flags.items() if not words or words[-1] in given)


def _dispatcher(given: Arguments) -> str:
    """How tokens go to experts: without a word, Megatron gathers them all."""
    kind, backend, old = DISPATCHER
    if (given.value(kind) or "allgather") != "flex":
        return given.value(kind) or "allgather"
    return given.value(backend) or ("deepep" if old in given else next(str(name) for name in ONCE_A_NODE))


def _stages(given: Arguments, pp: int, layers: int | None) -> dict[str, Any]:
    """`vp`, `schedule` and `layers` of the stages.

    Raises:
        BadInput: the layers do not make such stages.
    """
    if (layout := given.value(LAYOUT)) is not None:
        counts = layout_layers(layout, given.line(LAYOUT))
        return _virtual(max(1, len(counts) // pp)) | {"layers": counts}
    chunk, vp = given.count(CHUNK), given.count(CHUNKS) or 1
    counted = [int(name in given) for name in COUNTED_ENDS]
    if chunk and layers:
        vp = max(1, (layers + sum(counted)) // pp // chunk)
    ends = [given.count(name) for name in ENDS]
    if pp == 1 or layers is None or not (any(counted) or any(ends)):
        return _virtual(vp) | ({"layers": (layers,)} if pp * vp == 1 and layers else {})
    return _virtual(vp) | {"layers": _unequal(layers, pp, vp, counted, ends)}


def _virtual(vp: int) -> dict[str, Any]:
    return {"vp": vp, "schedule": "interleaved" if vp > 1 else "1f1b"}


def _unequal(layers: int, pp: int, vp: int, counted: Sequence[int], ends: Sequence[int | None]) -> tuple[int, ...]:
    """[pp·vp] layers where the ends are given, or hold the embedding and the loss in place of a layer each."""
    inner = pp - sum(end is not None for end in ends)
    rest = layers - sum(end or 0 for end in ends) + sum(counted)
    share, odd = divmod(rest, inner * vp) if inner else (0, rest)
    shares = [[end // vp if end is not None else share for end in ends]]
    if odd or any((end or 0) % vp for end in ends):
        what = f"{layers} layers do not make equal stages on the {inner} ranks between the ends"
        raise BadInput(what, where=f"`{ENDS[0]}`", do="give numbers that leave a multiple of the ranks")
    ranks = [shares[0][0], *(share for _ in range(pp - 2)), shares[0][1]]
    counts = ranks * vp
    counts[0] -= counted[0]
    counts[-1] -= counted[1]
    return tuple(counts)


def layout_layers(layout: str, where: str) -> tuple[int, ...]:
    """[pp·vp] layers of each stage of a layout: `x*n` is n times x, `(…)*n` n times what is in it, a bar ends a stage.

    Raises:
        BadInput: it has other letters, or is too long.
    """
    text = layout.replace(",", "").replace(" ", "")
    while len(text) <= LARGEST_LAYOUT and (match := _REPEATED.search(text)):
        part, times = (match[1], match[2]) if match[1] is not None else (match[3], match[4])
        if len(part) * int(times) > LARGEST_LAYOUT:
            break
        text = text[: match.start()] + part * int(times) + text[match.end() :]
    if not re.fullmatch(r"[EtmL|]+", text) or len(text) > LARGEST_LAYOUT:
        raise BadInput(
            f"`{LAYOUT}` is {layout[:40]!r}", where=where, do="write it as in Ett|tttt|ttL or Et*2|(t*4|)*2t*2L"
        )
    return tuple(stage.count("t") for stage in text.split("|"))


def _recomputation(given: Arguments, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is recomputed; by the method `block`, of the first blocks of every virtual stage alone."""
    kind = given.value("--recompute-granularity") or ("selective" if "--recompute-activations" in given else "none")
    blocks = given.count("--recompute-num-layers")
    if kind == "full" and given.value("--recompute-method") == "block" and blocks:
        stages, layers = fields.get("pp", 1) * fields.get("vp", 1), given.count(LAYERS) or 0
        most = fields.get("layers") or (layers // stages,) * stages
        return {"recompute": kind, "recompute_blocks": tuple(min(blocks, count) for count in most)}
    return {"recompute": kind}


def _refusals(given: Arguments) -> Iterator[str]:
    """What Megatron refuses at start-up, beside its limits."""
    lists = listed()
    for first, second in lists["exclusive"]:
        if first in given and second in given:
            yield f"`{first}` ({given.line(first)}) does not go with `{second}` ({given.line(second)})"
    for name, other in lists["needs"].items():
        if name in given and other not in given:
            yield f"`{name}` ({given.line(name)}) needs `{other}`"
    for name, other in lists["gone"].items():
        if name in given:
            yield f"`{name}` ({given.line(name)}) is gone: `{other}` took its place"
    if given.value("--recompute-granularity") == "full":
        for name in ("--recompute-method", "--recompute-num-layers"):
            if name not in given:
                yield f"`--recompute-granularity full` ({given.line('--recompute-granularity')}) needs `{name}`"
    positions, tokens = given.count("--max-position-embeddings"), given.count(SIZES["sequence"])
    if positions and tokens and positions < tokens:
        yield f"`--max-position-embeddings` {positions} is less than `--seq-length` {tokens}"


def _model(
    given: Arguments, layers: int | None, vocabulary: int | None, program: str
) -> tuple[MeasuredModel | None, tuple[str, ...]]:
    """The model that the sizes make, or what is not said of it."""
    hidden, heads, tokens = (given.count(SIZES[name]) for name in ("hidden", "heads", "sequence"))
    gated = "--swiglu" in given
    rotary = given.value("--position-embedding-type") or "learned_absolute"
    is_llama = gated or rotary == "rope" or "--use-rotary-position-embeddings" in given or "--squared-relu" in given
    vocabulary = given.count("--vocab-size") or given.count("--padded-vocab-size") or vocabulary
    if vocabulary is None and "--tokenizer-type" in given:
        vocabulary = VOCABULARIES.get(given.value("--tokenizer-type") or "")
    elif vocabulary is None and "--vocab-file" in given:
        vocabulary = VOCABULARIES.get(next((kind for name, kind in FAMILIES.items() if program.startswith(name)), ""))
    sizes = {LAYERS: layers, SIZES["hidden"]: hidden, SIZES["heads"]: heads, SIZES["sequence"]: tokens}
    lacking = tuple(name for name, size in {**sizes, "--vocab-size": vocabulary}.items() if not size)
    if any(other in program for other in OTHERS):
        return None, (f"what {program} trains",)
    if not (layers and hidden and heads and tokens and vocabulary):
        return None, lacking
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    width, experts = given.count(SIZES["ffn"]) or usual, given.count(SIZES["experts"])
    kv_heads = (given.count(SIZES["kv_heads"]) or 1) if "--group-query-attention" in given else heads
    mixture = None
    if experts:
        top, shared = given.count("--moe-router-topk") or 2, given.count("--moe-shared-expert-intermediate-size") or 0
        mixture = Mixture(experts, top, given.count("--moe-ffn-hidden-size") or width, shared)
    shape = TransformerShape(
        name="the model of the command",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=mixture.width if mixture else width,
        sequence=tokens,
        vocabulary=vocabulary,
        experts=experts,
        mtp_layers=given.count("--mtp-num-layers"),
    )
    return (
        MeasuredModel(
            family="bert" if "bert" in program else "llama" if is_llama else "gpt",
            shape=shape,
            tied="--untie-embeddings-and-output-weights" not in given,
            dropout=not is_llama and given.value("--hidden-dropout") not in ("0", "0.0"),
            head_width=given.count("--kv-channels"),
            gated=gated,
            mixture=mixture,
            dense_width=width if mixture else None,
            latent=_latent(given) if "--multi-latent-attention" in given else None,
            predicting_layers=given.count("--mtp-num-layers") or 0,
            blocks=_blocks(given.value("--moe-layer-freq"), layers) if mixture else None,
        ),
        (),
    )


def _latent(given: Arguments) -> Latent:
    sizes: dict[str, Any] = {name: given.count(argument) or usual for name, (argument, usual) in LATENT.items()}
    return Latent(**{**sizes, "rotary": Rotary(sizes["rotary"])})


def _blocks(pattern: str | None, layers: int) -> tuple[str, ...] | None:
    """Sublayers of each block of `--moe-layer-freq`: every so many blocks have experts, or those with 1 in a list."""
    if pattern is None or pattern == "1":
        return None

    def listed_at(node: ast.expr) -> list[int]:
        match node:
            case ast.BinOp(left=first, op=ast.Add(), right=second):
                return listed_at(first) + listed_at(second)
            case ast.BinOp(left=first, op=ast.Mult(), right=ast.Constant(value=int(times))) if times <= layers:
                return listed_at(first) * times
            case ast.List(elts=values):
                return [int(ast.literal_eval(value)) for value in values]
        raise ValueError

    try:
        sparse = [int(i % int(pattern) == 0) for i in range(layers)] if pattern.isdigit() else None
        sparse = sparse or listed_at(ast.parse(pattern.strip("'\""), mode="eval").body)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, ZeroDivisionError):
        sparse = []
    if len(sparse) != layers:
        what = f"`--moe-layer-freq` is {pattern[:40]!r}, which does not say which of {layers} layers have experts"
        raise BadInput(what, do="write a number, or a list such as ([0]*3+[1]*58)")
    return tuple("*E" if has else "*-" for has in sparse)


def _rewrite(given: Arguments, fields: Mapping[str, Any], layers: int | None) -> Rewrite:
    """The text with the arguments of another strategy in place of those that say otherwise."""

    def text_of(strategy: Strategy) -> str:
        wanted = {word[0]: list(word[1:]) for word in arguments(_block_plan(strategy, layers or 1))}
        if strategy.stages == 1 or len(set(strategy.layers or ())) <= 1:
            wanted.pop(LAYOUT, None)
            if strategy.vp > 1:
                wanted[CHUNK] = [str((layers or 1) // strategy.stages)]
        changed = {name for name in vars(strategy) if _differs(name, fields, strategy)}
        edits, added = list[tuple[Span, str]](), list[str]()
        for name, names in CHANGED.items():
            if not changed & {*names} or (name not in given and name not in wanted):
                continue
            entry = given.words.get(name, ())
            if name in wanted and entry:
                edits += [(_place(given, old), new) for old, new in zip(entry[1:2], wanted[name], strict=False)]
            elif entry:
                gone = [name, *(other for other, need in listed()["needs"].items() if need == name and other in given)]
                edits += [(_with_space(given.text, _span(given.words[one])), "") for one in gone]
            else:
                added.append(" ".join([name, *wanted[name]]))
        anchor = next((entry for name, entry in given.words.items() if name in COUNTS.values()), None)
        end = _span(anchor)[1] if anchor else len(given.text.rstrip())
        edits.append(((end, end), "".join(_separator(given.text, end) + text for text in added)))
        return _edited(given.text, edits)

    return text_of


def _block_plan(strategy: Strategy, layers: int) -> BlockPlan:
    counts = strategy.layers or (layers // strategy.stages,) * strategy.stages
    return BlockPlan("", Strategy(**{**vars(strategy), "layers": counts}), (strategy.tp,) * strategy.pp, ModelFacts())


def _differs(name: str, fields: Mapping[str, Any], strategy: Strategy) -> bool:
    """Whether a strategy says another value; stages that are equal are no other than those that nobody says."""
    usual = {"etp": fields.get("tp", 1)}.get(name, Strategy.__dataclass_fields__[name].default)
    if name == "layers":
        uneven = [counts for counts in (fields.get(name), strategy.layers) if counts and len(set(counts)) > 1]
        return bool(uneven) and fields.get(name) != strategy.layers
    before, after = fields.get(name, usual), strategy.expert_tensor if name == "etp" else getattr(strategy, name)
    if name == "etp":
        return "etp" in fields and before != after
    return bool(before != after)


def _place(given: Arguments, word: Word) -> Span:
    """Where a value is changed: in its assignment, unless another argument has that, too."""
    others = [other for entry in given.words.values() for other in entry if other.origin == word.origin]
    return word.origin if len(others) == 1 and word.origin != (0, 0) else word.site


def _span(words: Sequence[Word]) -> Span:
    """An argument with its first value."""
    return words[0].site[0], max(word.site[1] for word in words[:2])


def _separator(text: str, place: int) -> str:
    """What stands between two arguments here: a new line as the last one, or a space."""
    begin, stop = text.rfind("\n", 0, place) + 1, text.find("\n", place)
    line = text[begin : len(text) if stop < 0 else stop]
    indent = line[: len(line) - len(line.lstrip())]
    if not line.strip().startswith("--") or "\n" not in text:
        return " "
    return f" \\\n{indent}" if line.rstrip().endswith("\\") else f"\n{indent}"


def _with_space(text: str, span: Span) -> Span:
    """A place with the spaces before it, and the line's end where nothing else is on the line."""
    begin, stop = span
    while begin and text[begin - 1] in " \t":
        begin -= 1
    while stop < len(text) and text[stop] in " \t\\":
        stop += 1
    alone = (not begin or text[begin - 1] == "\n") and text[stop : stop + 1] in ("\n", "")
    return (begin, stop + 1) if alone else (begin, span[1])


def _edited(text: str, edits: Sequence[tuple[Span, str]]) -> str:
    for (begin, stop), new in sorted(set(edits), reverse=True):
        text = text[:begin] + new + text[stop:]
    return text
