"""Megatron-LM: a command line, or the script that holds it (shell.py), with the words of `export.megatron`.

    stages   --pipeline-model-parallel-layout, or --num-layers-per-virtual-pipeline-stage, or …-virtual-stages-…
             with --decoder-first-…, --decoder-last-… and --account-for-…: [pp·vp] layers in the order of the model

Defaults are those of training/arguments.py and TransformerConfig of Megatron-Core 0.19. megatron.yaml lists arguments
that cannot matter, pairs that Megatron refuses at start-up, and what is priced as if it were not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from automap_models.core.strategy import MODULES, ONCE_A_NODE
from automap_models.errors import BadInput
from automap_models.export.megatron import COUNTS, LIMITS, PRECISIONS, REMAKING, SIZES
from automap_models.importing.documents import note_of
from automap_models.importing.megatron_arguments import DEVICES, NODES, Arguments, listed, parsed
from automap_models.importing.megatron_model import LAYERS, model_of
from automap_models.importing.megatron_rewrite import (
    CHUNK,
    CHUNKS,
    COUNTED_ENDS,
    ENDS,
    HOSTED,
    LAYOUT,
    MODULES_GIVEN,
    OVERLAP,
    RECOMPUTE,
    SEARCHED,
    rewriting,
)
from automap_models.importing.setting import Setting, contradiction

DISPATCHER = ("--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend", "--moe-enable-deepep")
OFFLOAD, FRACTION = "--optimizer-cpu-offload", "--optimizer-offload-fraction"
LARGEST_LAYOUT = 10_000
_REPEATED = re.compile(r"\(([^()*]*)\)\*(\d{1,4})|([EtmL])\*(\d{1,4})")


def read(text: str, variables: Mapping[str, str], vocabulary: int | None) -> Setting:
    """What a command line, or a script that holds one, says.

    Args:
        variables: that are set outside.
        vocabulary: of the tokenizer, where the text does not say it.

    Raises:
        BadInput: it contradicts itself, or a value is no number.
    """
    given, script = parsed(text, variables)
    command = [word.text for word in script.command] or [""]
    program = next((Path(word).name for word in command if word.endswith(".py")), command[0])
    setting = setting_of(given, vocabulary, program)
    unknown, refusals = dict(setting.unread), setting.refusals
    if not program.startswith(("pretrain", "--")):
        unknown[program], refusals = "a program with defaults of its own", ()
    notes = [
        f"line {text.count(chr(10), 0, place) + 1} is left out: only running decides whether it counts"
        for place in script.skipped
    ]
    unset = {
        word.text
        for name, entry in given.words.items()
        for word in entry[1 + any(fnmatchcase(name, pattern) for pattern in listed()["cannot matter"]) :]
        if word.text.startswith("$")
    }
    notes += [f"`{text}` is set by nothing, and taken as empty" for text in sorted(unset)]
    if OVERLAP not in given:
        notes.append(f"`{OVERLAP}` is not given: gradients are priced beside passes, as far as they are with it")
    return replace(setting, unread=unknown, refusals=refusals, notes=tuple(dict.fromkeys((*setting.notes, *notes))))


def setting_of(given: Arguments, vocabulary: int | None, program: str = "pretrain_gpt") -> Setting:
    """What arguments say, by whatever name their text has for them; see `read`."""
    fields: dict[str, Any] = {name: count for name, argument in COUNTS.items() if (count := given.count(argument))}
    layers = given.count(LAYERS, 1000)
    fields |= _stages(given, fields.get("pp", 1), layers) | _recomputation(given, fields)
    if "--vision-dp-when-cp" in given and fields.get("cp", 1) > 1:
        fields["tower_tp"] = fields.get("tp", 1)
    fields["zero"] = int("--use-distributed-optimizer" in given)
    fields["sequence_parallel"] = "--sequence-parallel" in given and fields.get("tp", 1) > 1
    fields["precision"] = _precision(given)
    fields["offload"] = "optimizer" if OFFLOAD in given else "none"
    if given.count(SIZES["experts"]):
        # Megatron's default: experts are divided as everything else is.
        fields.setdefault("etp", fields.get("tp", 1))
    if fields.get("ep", 1) * fields.get("etp", 1) > 1 and fields.get("ep", 1) > 1:
        fields["dispatcher"] = _dispatcher(given)
    lists = listed()
    patterns = (*lists["read"], *lists["cannot matter"], *lists["noted"], *lists["gone"])
    unread = [name for name in given.words if not any(fnmatchcase(name, pattern) for pattern in patterns)]
    unread += ["--optimizer"] * ((given.value("--optimizer") or "adam") != "adam")
    unread += [FRACTION] * (OFFLOAD in given and (given.value(FRACTION) or "1") not in ("1", "1.", "1.0"))
    unknown = {given.name(name): given.line(name) for name in unread}
    for name in {*_modules(given)} - {*MODULES}:
        unknown[f"{given.name(MODULES_GIVEN)} {name}"] = given.line(MODULES_GIVEN)
    model, lacking = model_of(given, layers, vocabulary, program)
    per_node = next((given.count(name) for name in DEVICES if name in given), None)
    return Setting(
        limits=LIMITS,
        runtime="megatron",
        fields=fields,
        searched=SEARCHED,
        text=given.text,
        rewrite=rewriting(given, fields, layers),
        model=model,
        lacking=lacking,
        sequence=given.count(SIZES["sequence"]),
        nodes=next((given.count(name) for name in NODES if name in given), 1 if per_node else None),
        per_node=per_node,
        refusals=tuple(_refusals(given)),
        unread=unknown,
        notes=tuple(
            f"`{given.name(name)}`: {note}"
            for name, (_, *words) in given.words.items()
            if (note := note_of(lists["noted"], name, words[0].text if words else True))
        ),
    )


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
    """`vp`, `schedule` and `layers` of the stages."""
    if (layout := given.value(LAYOUT)) is not None:
        counts = layout_layers(layout, given.line(LAYOUT))
        return _virtual(max(1, len(counts) // pp)) | {"layers": counts}
    chunk, vp = given.count(CHUNK), given.count(CHUNKS) or 1
    counted = [int(name in given) for name in COUNTED_ENDS]
    if chunk and layers:
        vp = max(1, (layers + sum(counted)) // pp // chunk)
    ends = [given.count(name) for name in ENDS]
    if pp == 1 or layers is None or pp * vp > layers or not (any(counted) or any(ends)):
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
    if kind == "selective" and MODULES_GIVEN in given:
        kind = "+".join(name for name in MODULES if name in _modules(given)) or "none"
    if (blocks := given.count(HOSTED)) and kind == "none":
        return {"recompute": "offload", "recompute_blocks": (blocks,) * fields.get("pp", 1) * fields.get("vp", 1)}
    blocks = given.count("--recompute-num-layers")
    if kind == "full" and given.value("--recompute-method") == "block" and blocks:
        layers = given.count(LAYERS) or 0
        stages = min(layers, fields.get("pp", 1) * fields.get("vp", 1))
        most = fields.get("layers") or (layers // max(1, stages),) * stages
        return {"recompute": kind, "recompute_blocks": tuple(min(blocks, count) for count in most)}
    return {"recompute": kind}


def _modules(given: Arguments) -> list[str]:
    return [word.text for word in given.words.get(MODULES_GIVEN, ())[1:]]


def _fused_twice(given: Arguments, placed: Callable[..., str]) -> Iterator[str]:
    fused, kind = "--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl"
    if given.keys is None and fused in given and given.value(kind) == "te":
        yield f"{placed(kind, ' te')} does not go with {placed(fused)} since Megatron-Core 0.19"


def _refusals(given: Arguments) -> Iterator[str]:
    """What Megatron refuses at start-up, beside its limits."""

    def placed(name: str, value: str = "") -> str:
        return f"`{given.name(name)}{value}` ({given.line(name)})"

    lists = listed()
    for first, second in lists["exclusive"]:
        if first in given and second in given:
            yield f"{placed(first)} does not go with {placed(second)}"
    for name, other in lists["needs"].items():
        if name in given and other not in given:
            yield f"{placed(name)} needs `{given.name(other)}`"
    for name, other in lists["gone"].items():
        if name in given:
            yield f"{placed(name)} is gone: `{given.name(other)}` took its place"
    if given.count(HOSTED) and (other := next((name for name in RECOMPUTE if name != HOSTED and name in given), None)):
        yield f"{placed(HOSTED)} does not go with {placed(other)}"
    if given.value("--recompute-granularity") == "full":
        for name in ("--recompute-method", "--recompute-num-layers"):
            if name not in given:
                yield f"{placed('--recompute-granularity', ' full')} needs `{given.name(name)}`"
    yield from _fused_twice(given, placed)
    delayed = given.value("--fp8-format") and (given.value("--fp8-recipe") or "delayed") == "delayed"
    for name in sorted(REMAKING.intersection(_modules(given))) if delayed else ():
        yield f"{placed(MODULES_GIVEN)} {name} needs another `{given.name('--fp8-recipe')}` than delayed"
    positions, tokens = given.count("--max-position-embeddings"), given.count(SIZES["sequence"])
    if positions and tokens and positions < tokens:
        yield f"`--max-position-embeddings` {positions} is less than `--seq-length` {tokens}"
