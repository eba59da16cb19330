"""Splits a shell script into commands and words, without a shell.

A word consists of texts, references to variables (`Variable`), and parts that only a shell could
compute (`Code`), such as `$(nproc)`. Nothing is computed or run here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field

from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import VARIABLE_NAME

MAX_CHARS = 256 * 1024
_DEEPEST = 40  # substitutions within substitutions whose own quotes are read
_OPERATORS = ("&&", "||", ";;&", ";;", ";&", "|&", ";", "|", "&", "(", ")", "\n")
CASE_ENDS = (";;&", ";;", ";&")  # of a branch of `case`
_BEFORE_CASE = (("then",), ("else",), ("do",), ("if",), ("while",), ("until",), ("!",), ("{",))
_REDIRECT = re.compile(r"[0-9]*(?:&>>|&>|<<<|<<-|<<|>>|>\||>&|<&|<>|<|>)")
_WITH_DEFAULT = re.compile(r"(@|[0-9]+|[A-Za-z_][A-Za-z0-9_]*)(?:(:?)([-=?+])(.*))?", re.DOTALL)
_ALL_ELEMENTS = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]")
_ARRAY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=\(")
_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
_BACKQUOTED = re.compile(r"`(?:\\.|[^`\\])*`", re.DOTALL)
_ANSI_QUOTED = re.compile(r"\$'((?:\\.|[^'\\])*)'", re.DOTALL)
_CALCULATION = re.compile(r"\(\((?:[^()\n]|\([^()\n]*\))*\)\)")
_ANSI = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "r": "\r"}


@dataclass(frozen=True, slots=True)
class Variable:
    """A reference to a shell variable. `default` is the word in `${name:-word}`, None if the
    reference has no default. `if_empty` says whether the default also counts for a variable that
    is empty, which the colon means, and `assigns` whether the variable keeps the default
    (`${name:=word}`). `every` stands for all elements of an array, `${name[@]}`. `alternative` is
    the word in `${name:+word}`, which counts if the variable has a value, and `source` the text of
    such a reference."""

    name: str
    default: tuple[Part, ...] | None = None
    every: bool = False
    alternative: tuple[Part, ...] | None = None
    source: str = ""
    if_empty: bool = False
    assigns: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """A part of a word that only a shell could compute, such as `$(nproc)`."""

    source: str


Part = str | Variable | Code
Word = tuple[Part, ...]


@dataclass(slots=True)
class SimpleCommand:
    """A single command of a shell script: its words, the texts of its redirections and of its
    here-documents, and its own text in the script (`source`). A here-document is a word: in one
    whose end has no quotes, the shell replaces variables. `arrays` has the arrays that the command
    sets, as (name, whether the elements are appended, elements)."""

    words: list[Word] = field(default_factory=list)
    redirects: list[str] = field(default_factory=list)
    documents: list[Word] = field(default_factory=list)
    end: str = ""  # the operator after the command
    arrays: list[tuple[str, bool, list[Word]]] = field(default_factory=list)
    source: str = ""

    @property
    def has_content(self) -> bool:
        """Whether the command has words, redirections or arrays."""
        return bool(self.words or self.redirects or self.arrays)


def split_simple_commands(text: str) -> list[SimpleCommand]:
    """Return the simple commands of a script in their order. Raises InputError for a quote or
    bracket that is not closed, and for a script longer than MAX_CHARS."""
    if len(text) > MAX_CHARS:
        raise InputError(f"the script is longer than the limit of {MAX_CHARS // 1024} KiB")
    return list(_Lexer(text).read_commands())


def _join_continued_lines(text: str) -> str:
    """Return `text` with the lines that a backslash continues joined."""
    return _CONTINUED.sub(" ", text)


class _Lexer:
    """Splits the text of a shell script into commands and words, from left to right. `at` is the
    index of the next character, and `depth` the number of substitutions around the text."""

    def __init__(self, text: str, at: int = 0, depth: int = 0) -> None:
        self.text, self.at, self.depth = text, at, depth
        # ends of here-documents that begin after this line, and whether each has no quotes
        self.waiting: list[tuple[str, bool]] = []

    def read_commands(self, include_wordless: bool = False) -> Iterator[SimpleCommand]:
        """Yield the commands from `at` on. With `include_wordless`, also those without words, such
        as an empty text before a bracket."""
        now, start = SimpleCommand(), 0
        while self.at < len(self.text):
            rest = self.text[self.at]
            if rest in " \t\r":
                self.at += 1
            elif continued := _CONTINUED.match(self.text, self.at):
                self.at = continued.end()
            elif rest == "#":
                self.at = self._index_of_line_end()
            elif calculation := self._arithmetic_command_text():
                now.words.append((Code(calculation),))
                self.at += len(calculation)
            elif found := _REDIRECT.match(self.text, self.at):
                self._read_redirect(now, found[0])
            elif operator := next(
                (o for o in _OPERATORS if self.text.startswith(o, self.at)), None
            ):
                now.source = _join_continued_lines(self.text[start : self.at]).strip()
                now.end = operator
                self.at += len(operator)
                if operator == "\n":
                    self._skip_here_documents(now)
                if now.has_content or operator in CASE_ENDS or include_wordless:
                    yield now
                now, start = SimpleCommand(), self.at
            elif array := _ARRAY.match(self.text, self.at):
                self.at = array.end()
                now.arrays.append((array[1], bool(array[2]), self._read_array_elements()))
            else:
                now.words.append(self.read_word())
        if now.has_content:
            now.source = _join_continued_lines(self.text[start:]).strip()
            yield now

    def _index_after_commands(self) -> int:
        """Return the index after the bracket that closes the commands which begin at `at`. Brackets
        of commands within and those after the patterns of a `case` do not close them. Raises
        InputError if they are not closed."""
        brackets, cases = 0, [False]  # for each open case: whether its patterns are read now
        for command in self.read_commands(include_wordless=True):
            first = next((word for word in command.words if word not in _BEFORE_CASE), None)
            if first == ("case",):
                cases.append(True)
            elif first == ("esac",) and len(cases) > 1:
                cases.pop()
            if command.end == "(" and not cases[-1]:
                brackets += 1
            elif command.end == ")" and cases[-1]:
                cases[-1] = False
            elif command.end == ")" and brackets == 0:
                return self.at
            elif command.end == ")":
                brackets -= 1
            elif command.end in CASE_ENDS and len(cases) > 1:
                cases[-1] = True
        raise InputError("the commands are not closed")

    def _index_of_line_end(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _arithmetic_command_text(self) -> str:
        """Return the text of the arithmetic command, `((...))`, that begins at `at`; "" if none
        begins there."""
        found = _CALCULATION.match(self.text, self.at)
        return found[0] if found else ""

    def _read_array_elements(self) -> list[Word]:
        """Read the elements of an array up to the bracket that closes it, and return them. Before
        the call, `at` is the index after the opening bracket."""
        begin = self.at
        elements: list[Word] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == ")":
                self.at += 1
                return elements
            if char == "#":
                self.at = self._index_of_line_end()
            elif continued := _CONTINUED.match(self.text, self.at):
                self.at = continued.end()
            elif char in " \t\r\n;&|(<>":
                self.at += 1
            else:
                elements.append(self.read_word())
        raise InputError(
            f"the script has an array that is not closed: {self.text[begin - 1 : begin + 20]!r}"
        )

    def _read_redirect(self, command: SimpleCommand, operator: str) -> None:
        """Read the redirection that `operator` begins at `at`, and add its text to `command`. The
        end of a here-document is kept in `waiting` until the line is read."""
        begin = self.at
        self.at += len(operator)
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1
        target: Word = ()
        if self.at < len(self.text) and self.text[self.at] not in "\n;&|()<>":
            target = self.read_word()
        command.redirects.append(self.text[begin : self.at])
        if operator.endswith(("<<", "<<-")) and not operator.endswith("<<<"):
            written = self.text[begin : self.at]
            end = "".join(p for p in target if isinstance(p, str))
            self.waiting.append((end, not any(mark in written for mark in "'\"\\")))

    def _skip_here_documents(self, command: SimpleCommand) -> None:
        """Read the here-documents in `waiting`, which begin at `at`, and add their texts to
        `command`, the last command of the line before them."""
        for end, filled_in in self.waiting:
            lines = []
            while self.at < len(self.text):
                until = self._index_of_line_end()
                line = self.text[self.at : until]
                self.at = until + 1
                if line.strip() == end:
                    break
                lines.append(line)
            command.redirects.append(" ".join(lines))
            text = "\n".join(lines)
            command.documents.append(
                _here_document_parts(_join_continued_lines(text)) if filled_in else (text,)
            )
        self.waiting.clear()

    def read_word(self) -> Word:
        parts: list[Part] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n;&|()<>" or _CONTINUED.match(self.text, self.at):
                break
            if char in "'\"":
                parts += self._read_quoted()
            elif char == "\\":
                parts.append(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            elif char in "$`":
                parts.append(self._read_expansion("'\""))
            else:
                parts.append(char)
                self.at += 1
        return _join_adjacent_texts(parts)

    def _read_quoted(self) -> list[Part]:
        """Read a text in single or double quotes, and return its parts. Before the call, `at` is
        the index of the opening quote. Afterwards it is the index after the closing quote. Raises
        InputError if the quote is not closed."""
        quote = self.text[self.at]
        self.at += 1
        if quote == '"':
            return self._read_double_quoted()
        begin = self.at
        end = self._index_of_closing_quote(quote, begin)
        self.at = end + 1
        return [self.text[begin:end]]

    def _index_of_closing_quote(self, quote: str, begin: int) -> int:
        """Return the index of the first `quote` from `begin` on. Raises InputError if there is
        none."""
        end = self.text.find(quote, begin)
        if end < 0:
            raise InputError(
                f"the script has a quote {quote} that is not closed: "
                f"{self.text[begin - 1 : begin + 20]!r}"
            )
        return end

    def _read_double_quoted(self) -> list[Part]:
        """Read a text in double quotes, and return its parts. Before the call, `at` is the index
        after the opening quote. Afterwards it is the index after the closing quote."""
        parts: list[Part] = [""]
        begin = self.at
        while True:
            char = self.text[self.at : self.at + 1]
            if not char:
                raise InputError(
                    'the script has a quote " that is not closed: '
                    f"{self.text[begin - 1 : begin + 20]!r}"
                )
            if char == '"':
                self.at += 1
                return parts
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in tuple('\\"$`'):
                parts.append(self.text[self.at + 1])
                self.at += 2
            elif continued := _CONTINUED.match(self.text, self.at):
                parts.append(" ")
                self.at = continued.end()
            elif char in "$`":
                parts.append(self._read_expansion('"'))
            else:
                parts.append(char)
                self.at += 1

    def _read_expansion(self, quotes: str = "") -> Part:
        """Read what the dollar sign or backquote at `at` begins, and return it: a variable, code,
        or a text. `quotes` are the quotation marks that the default of a variable loses here, as in
        `${name:-"word"}`."""
        text, begin = self.text, self.at
        if text[begin] == "`":
            backquoted = _BACKQUOTED.match(text, begin)
            self.at = (
                backquoted.end() if backquoted else self._index_of_closing_quote("`", begin + 1) + 1
            )
            return Code(_join_continued_lines(text[begin : self.at]))
        following = text[begin + 1 : begin + 2]
        if following == "{":
            self.at = self._index_after_reference(begin + 1, quotes)
            inside, source = text[begin + 2 : self.at - 1], text[begin : self.at]
            return _parse_variable_reference(
                _join_continued_lines(inside), _join_continued_lines(source), quotes
            )
        if following == "(":
            self.at = self._index_after_substitution(begin + 1)
            return Code(_join_continued_lines(text[begin : self.at]))
        if (quoted := _ANSI_QUOTED.match(text, begin)) and "'" in quotes:
            self.at = quoted.end()
            return re.sub(r"\\(.)", lambda m: _ANSI.get(m[1], m[0]), quoted[1])
        if found := VARIABLE_NAME.match(text, begin + 1):
            self.at = found.end()
            return Variable(found[0])
        if following in ("@", "*"):
            self.at = begin + 2
            return Variable("@")
        if following and following in "?$!#0123456789-":
            self.at = begin + 2
            return Code(text[begin : self.at])
        self.at = begin + 1
        return "$"

    def _index_after_substitution(self, begin: int) -> int:
        """Return the index after the bracket that closes the substitution whose bracket is at
        `begin`. What is within is read as the commands of a shell; if these are not closed, as in
        the text of another language, only brackets are counted. Raises InputError if none closes
        it."""
        if self.depth < _DEEPEST:
            try:
                return _Lexer(self.text, begin + 1, self.depth + 1)._index_after_commands()
            except InputError:
                pass
        return self._index_after_closing_bracket(begin)

    def _index_after_reference(self, begin: int, quotes: str) -> int:
        """Return the index after the brace that closes the one at `begin`. A brace between two of
        the quotation marks in `quotes` closes nothing."""
        lexer = _Lexer(self.text, begin + 1, self.depth + 1)
        depth = 1
        while quotes and self.depth < _DEEPEST and lexer.at < len(self.text):
            char = self.text[lexer.at]
            depth += (char == "{") - (char == "}")
            if depth == 0:
                return lexer.at + 1
            try:
                lexer._skip_word_part(quotes)
            except InputError:
                break
        return self._index_after_closing_bracket(begin)

    def _skip_word_part(self, quotes: str) -> None:
        """Move `at` behind the next character, or behind the quoted text, variable or code that
        begins with it. `quotes` are the quotation marks that begin a quoted text."""
        char = self.text[self.at]
        if char in quotes:
            self._read_quoted()
        elif char in "$`":
            self._read_expansion(quotes)
        else:
            self.at += 2 if char == "\\" else 1

    def _index_after_closing_bracket(self, begin: int) -> int:
        """Return the index after the bracket that closes the bracket at `begin`, whatever stands
        between them. Raises InputError if it is not closed."""
        opens = self.text[begin]
        closes = {"(": ")", "{": "}"}[opens]
        depth = 0
        for at in range(begin, len(self.text)):
            depth += (self.text[at] == opens) - (self.text[at] == closes)
            if depth == 0:
                return at + 1
        raise InputError(
            f"the script has a bracket that is not closed: {self.text[begin - 1 : begin + 20]!r}"
        )


def _parse_variable_reference(inside: str, source: str, quotes: str) -> Part:
    """Return the part for `${inside}`: a Variable, or Code if only a shell could compute it.
    `source` is the whole text of the reference, and `quotes` are the quotation marks that its
    default loses."""
    if array := _ALL_ELEMENTS.fullmatch(inside):
        return Variable(array[1], every=True)
    found = _WITH_DEFAULT.fullmatch(inside)
    if found is None:
        return Code(source)
    name, colon, operator, word = found.groups()
    escaped = '\\"$`}' if quotes else ""
    if operator == "+":
        alternative = parse_word_parts(word, quotes=quotes, escapable=escaped)
        return Variable(name, alternative=alternative, source=source)
    if operator in ("-", "="):
        return Variable(
            name,
            parse_word_parts(word, quotes=quotes, escapable=escaped),
            source=source,
            if_empty=bool(colon),
            assigns=operator == "=",
        )
    return Code(source) if name.isdecimal() else Variable(name)


def _here_document_parts(text: str) -> Word:
    """Return the parts of a here-document in which the shell replaces variables. A text that is
    not that of a shell, such as one with a bracket that is not closed, stays as it is."""
    try:
        return parse_word_parts(text, escapable="\\$`")
    except InputError:
        return (text,)


def parse_word_parts(
    text: str, start_characters: str = "$`", quotes: str = "", escapable: str = ""
) -> Word:
    """Return the parts of a text: plain text, variables and code.

    Only the characters in `start_characters` begin a variable or code. A text between two of the
    quotation marks in `quotes` loses them, and a character in `escapable` loses the backslash
    before it, as in a shell. In double quotes, the shell's own rules apply. All other characters,
    such as spaces, are plain text. Raises InputError for a quote or bracket that is not closed.
    """
    lexer = _Lexer(text)
    parts: list[Part] = [""]
    while lexer.at < len(text):
        char = text[lexer.at]
        following = text[lexer.at + 1 : lexer.at + 2]
        if char in start_characters:
            parts.append(lexer._read_expansion(quotes))
        elif char in quotes:
            parts += lexer._read_quoted()
        elif char == "\\" and following in tuple(escapable):
            parts.append(following)
            lexer.at += 2
        else:
            parts.append(char)
            lexer.at += 1
    return _join_adjacent_texts(parts)


def parse_compose_file_value(text: str) -> Word:
    """Return the parts of a value of a compose file, in which only "$" is special and "$$" means a
    dollar sign."""
    pieces = [parse_word_parts(piece, "$") for piece in text.split("$$")]
    joined: list[Part] = list(pieces[0])
    for piece in pieces[1:]:
        joined += ["$", *piece]
    return _join_adjacent_texts(joined)


def _join_adjacent_texts(parts: list[Part]) -> Word:
    """Return the parts as a word, with adjacent texts joined into one. An empty list becomes a word
    of one empty text."""
    joined: list[Part] = []
    for part in parts:
        before = joined[-1] if joined else None
        if isinstance(part, str) and isinstance(before, str):
            joined[-1] = before + part
        else:
            joined.append(part)
    return tuple(joined) or ("",)
