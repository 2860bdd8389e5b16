"""Shell scripts, read and never run: the words of the command that trains, with the places of each in the text.

    TP=8                                       a value is changed where it is assigned
    ARGS=(--tensor-model-parallel-size $TP)    word `8`: used in line 2 (site), written in line 1 (origin)
    torchrun pretrain.py ${ARGS[@]}            words: torchrun pretrain.py --tensor-model-parallel-size 8

Known are assignments, arrays, `+=`, `${NAME:-value}`, `$((A * B))`, continued lines, and conditions on texts and
numbers.
A variable that nothing sets stays in a word as it is written, and counts as empty in a condition. What stands in loops,
or under a condition that only running decides, is left out. Spaces separate words in quotes, too: scripts keep in
quotes arguments that they later use without.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from automap_models.errors import BadInput

Span = tuple[int, int]
LARGEST = 4 << 20
"""Characters of all words together, with the values of variables."""

_VARIABLE = r"""(?P<sum>\$\(\([^()]*(?:\([^()]*\)[^()]*)*\)\))
    | (?P<variable>\$\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\$\w+|\$[@*])"""
_PIECE = re.compile(
    rf"""(?P<space>(?:[ \t\r]|\\\r?\n)+|(?<![^\s(])\#[^\n]*)
    | (?P<end>\n|;;?|&&|\|\|?|&(?!\d))
    | (?P<quoted>'[^']*'|"(?:[^"\\]|\\.)*")
    | {_VARIABLE}
    | (?P<command>\$\([^()]*(?:\([^()]*\)[^()]*)*\)|`[^`]*`)
    | (?P<bracket>[()])
    | (?P<name>(?<![^\s;&|(])[A-Za-z_]\w*\+?=)
    | (?P<plain>\\.|[^\s'"`$\\;&|()]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1[^\n]*\n.*?\n[ \t]*\2(?=\n|$)", re.DOTALL)
_INNER = re.compile(rf"(?P<space>(?:\s|\\\r?\n)+) | {_VARIABLE} | (?P<plain>\\.|[^\s$\\]+|.)", re.VERBOSE | re.DOTALL)
_NAME = re.compile(r"\$\{?(\w+|[@*])(?:\[[@*]\])?(?::?[-=](.*))?\}?", re.DOTALL)
_SUMS: Mapping[type, Callable[[int, int], int]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: operator.floordiv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
}
_TEXTS = {"=": operator.eq, "==": operator.eq, "!=": operator.ne}
_NUMBERS = {"-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-ge": operator.ge, "-lt": operator.lt}
_NUMBERS |= {"-le": operator.le}
_OPENING, _CLOSING = ("for", "while", "until", "case", "select"), ("fi", "done", "esac")
_SKIPPED = ("then", "do", "{", "}", "!", "time", "exec", "export", "local", "declare", "readonly", "-x", "-a")
_SAYING = ("echo", "printf", "cat", "cd", "mkdir", "source", "pip", "git")
"""Programs that train nothing, whatever they are told."""


class Word(NamedTuple):
    """A word of a command.

    Attributes:
        text: with the values of variables; a variable that nothing sets as it is written.
        site: where it is used.
        origin: where it is written: in an assignment, where it is the value of a variable.
    """

    text: str
    site: Span
    origin: Span


class Lexeme(NamedTuple):
    """Pieces between two spaces; `NAME=` and the elements of the array that follows, if they begin like that."""

    pieces: Sequence[re.Match[str]]
    elements: Sequence[Sequence[re.Match[str]]] | None = None


class Script:
    """What a script, or a command, is certain to do.

    Args:
        text: of it.
        variables: that are set before it.

    Attributes:
        statements: the words of each command.
        skipped: places of assignments that are left out.
    """

    def __init__(self, text: str, variables: Mapping[str, str]) -> None:
        self.text, self.statements, self.skipped = text, list[list[Word]](), list[int]()
        self.variables = {name: [Word(value, (0, 0), (0, 0))] for name, value in variables.items()}
        self._given, self._length = frozenset(variables), 0
        self._branches: list[tuple[bool | None, bool | None]] = []  # of each `if`: whether this runs, or one before it
        self._truth: bool | None = True  # of the last test
        for separator, lexemes in _statements(_HEREDOC.sub(lambda match: " " * len(match[0]), text)):
            self._read(separator, lexemes)

    @property
    def command(self) -> list[Word]:
        """The words of the command that trains: of those with options the one with most, or all lines of options."""
        options = [word for words in self.statements if words[0].text.startswith("--") for word in words]
        programs = [words for words in self.statements if words[0].text not in _SAYING]
        return max((options, *programs), key=lambda words: sum(word.text.startswith("--") for word in words))

    def _read(self, separator: str, lexemes: Sequence[Lexeme]) -> None:
        """Run one statement: an assignment, a condition or a command."""
        keyword = _keyword(lexemes)
        while keyword in _SKIPPED:
            if keyword == "then" and self._branches:
                (_, before), truth = self._branches[-1], self._truth
                self._branches[-1] = (
                    _both(_opposite(before), truth),
                    _opposite(_both(*map(_opposite, (before, truth)))),
                )
                separator, self._truth = "", True
            lexemes = lexemes[1:]
            keyword = _keyword(lexemes)
        if keyword in ("if", *_OPENING):
            self._branches.append((False, False) if keyword == "if" else (None, None))
        elif keyword in _CLOSING and self._branches:
            self._branches.pop()
        elif keyword == "else" and self._branches:
            self._branches[-1] = (_opposite(self._branches[-1][1]), True)
            return self._read("", lexemes[1:])
        if keyword in ("if", "elif"):
            self._test("", lexemes[1:])
        elif keyword in ("[", "[["):
            self._test(separator, lexemes)
        elif lexemes and keyword not in (*_OPENING, *_CLOSING):
            self._run(separator, lexemes)
        return None

    def _test(self, separator: str, lexemes: Sequence[Lexeme]) -> None:
        truth = _truth([word.text for lexeme in lexemes for word in self._words(lexeme.pieces)])
        before = self._truth if separator in ("&&", "||") else truth
        if separator == "||":
            self._truth = _opposite(_both(_opposite(before), _opposite(truth)))
        else:
            self._truth = _both(before, truth)

    def _run(self, separator: str, lexemes: Sequence[Lexeme]) -> None:
        """Assign, or keep a command; in a branch that nobody knows, neither."""
        runs: bool | None = {"&&": self._truth, "||": _opposite(self._truth)}.get(separator, True)
        for branch, _ in self._branches:
            runs = _both(runs, branch)
        self._truth = True
        assigned = [lexeme for lexeme in lexemes if lexeme.pieces[0].lastgroup == "name"]
        is_command = len(assigned) < len(lexemes)
        if is_command and runs:
            after = lexemes[next(i for i, one in enumerate(lexemes) if one.pieces[0].lastgroup != "name") :]
            words = [word for lexeme in after for word in self._words(lexeme.pieces) if word.text]
            self.statements += [words] if words else []
        for lexeme in () if is_command else assigned:
            name = lexeme.pieces[0][0].rstrip("+=")
            if name in self._given:
                continue
            if runs is None:
                self.skipped.append(lexeme.pieces[0].start())
            if runs:
                values = [lexeme.pieces[1:]] if lexeme.elements is None else lexeme.elements
                value = [word for pieces in values for word in self._words(pieces) if word.text]
                added = lexeme.pieces[0][0].endswith("+=")
                self.variables[name] = [*(self.variables.get(name, ()) if added else ()), *value]

    def _words(self, pieces: Sequence[re.Match[str]]) -> Iterator[Word]:
        """The words that adjacent pieces make; variables of variables are refused that make a small script large."""
        word: Word | None = None
        for part in (part for piece in pieces for part in self._parts(piece[0], piece.lastgroup, piece.span())):
            if part is None or word is None:
                if word is not None:
                    yield word
                word = part
            else:
                span = word.site[0], part.site[1]
                word = Word(word.text + part.text, span, span)
            self._length += 1 if part is None else 1 + len(part.text)
            if self._length > LARGEST:
                raise BadInput("its variables make more than can be meant", do="give a smaller script")
        if word is not None:
            yield word

    def _parts(self, text: str, kind: str | None, span: Span) -> Iterator[Word | None]:
        """Words of one piece; None between two of them."""
        if kind == "space":
            yield None
        elif kind == "quoted" and text[0] == '"' and len(text) > 2:
            for inner in _INNER.finditer(text[1:-1]):
                begin = span[0] + 1 + inner.start()
                yield from self._parts(inner[0], inner.lastgroup, (begin, begin + len(inner[0])))
        elif kind == "variable":
            yield from self._expanded(text, span)
        elif kind == "sum":
            yield Word(self._sum(text), span, span)
        else:
            yield Word(text[1:-1] if kind == "quoted" else text.removeprefix("\\"), span, span)

    def _expanded(self, text: str, span: Span) -> Iterator[Word | None]:
        """The words of a variable; one alone is used here."""
        match = _NAME.fullmatch(text)
        name, usual = match.groups() if match else (None, None)
        words = self.variables.get(name or "")
        if words is None and usual is not None:
            begin = span[0] + (match.start(2) if match else 0)
            usual = usual.removesuffix("}")
            if "$" in usual:
                for piece in _INNER.finditer(usual.strip("'\"")):
                    yield from self._parts(piece[0], piece.lastgroup, span)
                return
            quoted = usual[:1] in ("'", '"') and len(usual) > 1
            inner = (begin + quoted, begin + len(usual) - quoted)
            words = [Word(usual[quoted : len(usual) - quoted], inner, inner)]
        for number, word in enumerate([Word(text, span, span)] if words is None else words):
            if number:
                yield None
            yield word if words is not None and len(words) > 1 else word._replace(site=span)

    def _sum(self, text: str) -> str:
        """The value of `$((…))`, or the text where that is not known."""

        def value(node: ast.expr) -> int:
            if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
                return _SUMS[type(node.op)](value(node.left), value(node.right))
            if isinstance(node, ast.Name):
                return int(self.variables[node.id][0].text)
            return int(ast.literal_eval(node))

        try:
            return str(value(ast.parse(re.sub(r"[${}]", "", text[3:-2]).strip(), mode="eval").body))
        except (SyntaxError, ValueError, KeyError, IndexError, TypeError, ArithmeticError, RecursionError, MemoryError):
            return text


def _statements(text: str) -> Iterator[tuple[str, Sequence[Lexeme]]]:
    """Each statement with the separator before it; line ends in an array separate its elements."""
    lexemes, pieces, separator = list[Lexeme](), list[re.Match[str]](), ""
    array: tuple[re.Match[str], list[Sequence[re.Match[str]]]] | None = None
    for piece in _PIECE.finditer(text):
        kind = piece.lastgroup
        if array is None and piece[0] == "(" and len(pieces) == 1 and pieces[0].lastgroup == "name":
            array, pieces = (pieces[0], []), []
            continue
        if kind not in ("space", "end", "bracket"):
            pieces.append(piece)
            continue
        if pieces and array is not None:
            array[1].append(pieces)
        elif pieces:
            lexemes.append(Lexeme(pieces))
        pieces = []
        if array is not None and piece[0] == ")":
            lexemes.append(Lexeme([array[0]], array[1]))
            array = None
        elif array is None and kind == "end":
            yield separator, lexemes
            lexemes, separator = [], piece[0]
    yield separator, [*lexemes, *([Lexeme(pieces)] if pieces else ())]


def _keyword(lexemes: Sequence[Lexeme]) -> str:
    """What a statement begins with; empty for nothing, and for what is more than a word."""
    return lexemes[0].pieces[0][0] if lexemes and len(lexemes[0].pieces) == 1 else ""


def _opposite(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _both(first: bool | None, second: bool | None) -> bool | None:
    """Whether both hold; None where nobody knows."""
    return False if first is False or second is False else None if None in (first, second) else True


def _truth(words: Sequence[str]) -> bool | None:
    """Of a test of texts or numbers; None for others, which only running decides."""
    match [re.sub(r"\$\{?\w+.*", "", word) for word in words]:
        case ["[" | "[[", "!", *test]:
            return _opposite(_truth([words[0], *test]))
        case ["[" | "[[", "-n", text, _]:
            return bool(text)
        case ["[" | "[[", "-z", text, _]:
            return not text
        case ["[" | "[[", first, sign, second, _] if sign in _TEXTS:
            return bool(_TEXTS[sign](first, second))
        case ["[" | "[[", first, sign, second, _] if (
            sign in _NUMBERS and (first + second).isdigit() and first and second
        ):
            return bool(_NUMBERS[sign](int(first), int(second)))
    return None
