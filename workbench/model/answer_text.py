"""The text of a model's answers: its features, and whether it looks like language.

A fast answer is worth nothing if it is garbage. Broken kernels, wrong chat templates and bad
quantizations produce few kinds of garbage, and none of them needs knowledge of the model to be
seen:

  one token or a short loop, repeated        `SetFeatures.collapsed`, `SetFeatures.looping`
  replacement and control characters         `Features.odd_share`
  many scripts or symbols mixed              `SetFeatures.salad`
  no text at all, or only reasoning          `SetFeatures.empty`, `SetFeatures.reasoning_only`
  the same text for different prompts        `SetFeatures.equal`

`Answer` is one answer, and may contain only the first and the last part of a long text.
`text_features` looks at one text, and `features_of_answers` at the answers of a run. `answer_probe`
has the prompts of a probe and judges its answers. Nothing here does input or output, and the load
client runs this file on hosts with Python 3.10."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache

from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import clean_text

EXCERPT_CHARACTERS = 160
# codes of findings that are not about the text itself
USAGE = "text.usage"
PROMPT_CUT = "text.prompt-cut"
LEAST_CHARACTERS = 12  # a shorter text is not judged: "OK." is an answer

_SHORT_LOOP = 8  # characters of a repeated unit: about one or two tokens
_LOOP_SHARE = 0.8  # of the text, that the repetitions must cover
_LOOP_REPEATS, _PHRASE_REPEATS = 4, 3
_PHRASE = 24  # characters
_LAST_OF_LOOP = 3  # characters, which a unit of one character repeats too
_WHOLE = 0.95
# Share of words; and of the size that random tokens keep, besides the bytes that any text costs.
_JUMBLED_SHARE, _LEAST_JUDGED_WORDS = 0.2, 8
_INCOMPRESSIBLE, _COMPRESSED_HEAD = 0.78, 24.0
_ODD_SHARE = 0.1
_BROKEN_CHARACTER = re.compile("(?<!\ufffd)\ufffd{1,3}(?!\ufffd)")  # of up to four bytes
_COMMON_SHARE = 0.8
_LEAST_WORDS = 12
_PROBE_PARTS = {
    "alone": "alone",
    "together": "several at once",
    "longer": "longer answers",
    "long": "long prompts",
}
_LEAST_BROKEN = 2  # answers; one odd answer may be chance
# Of the answers in one place: broken kernels often break only a part of a batch.
_BROKEN_SHARE = 0.2
_SYMBOL_SHARE = 0.4
# Punctuation without spaces is no sentence, and no common code.
_MARKS_SHARE, _SPACES_SHARE = 0.25, 0.03
_LEAST_LETTERS = 20
_SCRIPTS, _ANY_SCRIPTS = 4, 7  # a text about one thing has one or two
_OTHER_SCRIPTS_SHARE = 0.25  # of the letters, outside the two most common scripts
# One token repeated at the end, after other text. Rulers and tables do this too.
_LEAST_END = 60
_TAIL_REPEATS, _RULERS = 16, frozenset("-=_*.~#+|:\u2500\u2550\u2026 \n\t")
_FEW_WORDS, _FEW_WORDS_SHARE = 8, 0.2
_LEAST_VOWELS = 0.27  # of Latin letters; languages have 0.35 to 0.5, random letters 0.23
_LEAST_LATIN = 60
_COMPRESSED_LETTERS = 0.5  # of their size; random letters 0.6. Loops may have few vowels.
_PUNCTUATION = frozenset(".,;:!?'\"()[]-–—…*#_/`’‘“”«»、。，！？；：「」『』《》（）·।؟،¿¡%&+=")
_WORD_MARKS = "\u0f0b\u0f0c\u1361"  # Tibetan and Ethiopic: between words, in place of a space
_DIGITS = re.compile(r"\d+")
_LETTER = r"[^\W\d_]"
_INSIDE = re.compile(
    rf"{_LETTER}{{2}}(?:[(\[{{<.;:\\/$%]+|\d{{2,}}|_){_LETTER}{{2}}|[a-z\u00df-\u00ff][A-Z]"
)
_ALPHABETS = tuple(  # Latin, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Thai
    re.compile(f"[{letters}]")
    for letters in (
        "A-Za-z\u00c0-\u024f",
        "\u0370-\u03ff",
        "\u0400-\u04ff",
        "\u0590-\u05ff",
        "\u0600-\u06ff",
        "\u0900-\u097f",
        "\u0e00-\u0e7f",
    )
)
_VOWELS = frozenset("aeiouyıøæœəɛɔ")
_ONE_SCRIPT = {
    "HIRAGANA": "CJK",
    "KATAKANA": "CJK",
    "KATAKANA-HIRAGANA": "CJK",
    "FULLWIDTH": "LATIN",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a model. Of a long text, `text` and `reasoning` may contain only the first
    part, and `end` the last part; `characters` and `reasoning_characters` are the full lengths.
    `prompt` identifies the prompt: answers to equal prompts may be equal. `model` is the name that
    the reply reports."""

    text: str
    reasoning: str = ""
    end: str = ""
    characters: int = -1
    reasoning_characters: int = -1
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    model: str | None = None
    prompt: str = ""

    @property
    def all_text(self) -> str:
        """The reasoning and the answer, without `end`."""
        return self.reasoning + self.text

    @property
    def equality_key(self) -> tuple[str, str, int]:
        """(text with reasoning, end, number of characters), which are the same for equal
        answers."""
        return self.all_text, self.end, self.total_character_count

    @property
    def text_and_end_without_numbers(self) -> tuple[str, str]:
        """(text with reasoning, end), each number replaced by 0, because an engine that always says
        the same may count. A text without letters, such as a list of results, keeps its numbers."""
        if not any(map(str.isalpha, self.all_text)):
            return self.all_text, self.end
        return _DIGITS.sub("0", self.all_text), _DIGITS.sub("0", self.end)

    @property
    def total_character_count(self) -> int:
        return self.text_character_count + _stored_or_counted_length(
            self.reasoning, self.reasoning_characters
        )

    @property
    def text_character_count(self) -> int:
        """The full length of the text without the reasoning."""
        return _stored_or_counted_length(self.text, self.characters)

    @property
    def is_empty(self) -> bool:
        """Whether the answer has no text, or only spaces and line breaks."""
        return not self.all_text.strip()

    @property
    def is_only_reasoning(self) -> bool:
        """Whether the answer has reasoning and no text after it: the model was still reasoning when
        the answer ended."""
        return bool(self.reasoning) and not self.text.strip()


def _stored_or_counted_length(text: str, stored_length: int) -> int:
    """Return the length of a text; `stored_length` is below 0 if the whole text is here."""
    return len(text) if stored_length < 0 else stored_length


@dataclass(frozen=True, slots=True)
class Features:
    """What can be seen in one text. Shares are 0 to 1.

    `loop` is the shortest unit whose repetitions end the text, and `loop_share` the part of the
    text that they cover; "" and 0 if nothing repeats. `tail` is a unit of a few characters that is
    repeated at the end, whatever stands before. `few_words` is the number of different words in a
    text that uses only a few in any order, otherwise 0. `common_share` is the share of the most
    common word or, in a text without words, of the most common character. `odd_share` counts
    replacement, control, private and unassigned characters. `symbol_share` counts characters that
    are neither letters, digits, spaces nor common punctuation, and `marks_share` this punctuation.
    `jumbled_share` is the share of words that are no words of any language: with a capital letter,
    an underscore, a bracket or digits inside, or with letters of two alphabets. Random tokens of a
    vocabulary make such words. `compressed` is the compressed size divided by the size.
    """

    characters: int
    loop: str = ""
    loop_share: float = 0.0
    tail: str = ""
    few_words: int = 0
    common_share: float = 0.0
    odd_share: float = 0.0
    symbol_share: float = 0.0
    marks_share: float = 0.0
    spaces_share: float = 0.0
    jumbled_share: float = 0.0
    scripts: int = 0
    other_scripts_share: float = 0.0
    vowel_share: float | None = None
    compressed: float | None = None

    @property
    def loops_from_start(self) -> bool:
        """Whether the repetition begins with the first characters of the text."""
        return self.loop_share >= _WHOLE

    @property
    def is_only_repetition(self) -> bool:
        """Whether the text is one unit, repeated from its first character to its last one."""
        return self.is_one_repeated_phrase and self.loops_from_start

    @property
    def is_one_repeated_token(self) -> bool:
        """Whether the text is little more than one token, or two in turn, repeated."""
        if self.characters < LEAST_CHARACTERS:
            return False
        short_loop = len(self.loop) <= _SHORT_LOOP and self.loop_share >= _LOOP_SHARE
        return short_loop or self.common_share >= _COMMON_SHARE

    @property
    def is_one_repeated_phrase(self) -> bool:
        """Whether the text is little more than one phrase repeated. A healthy model that may not
        end its answer does this."""
        return self.characters >= LEAST_CHARACTERS and self.loop_share >= _LOOP_SHARE

    @property
    def has_odd_characters(self) -> bool:
        """Whether a tenth of the text or more are characters that no language uses. False for a
        text below LEAST_CHARACTERS."""
        return self.characters >= LEAST_CHARACTERS and self.odd_share >= _ODD_SHARE

    @property
    def mixes_scripts(self) -> bool:
        """Whether the text mixes scripts or symbols as no answer to a plain question does."""
        if self.characters < LEAST_CHARACTERS:
            return False
        mixed = self.scripts >= _SCRIPTS and self.other_scripts_share >= _OTHER_SCRIPTS_SHARE
        few_vowels = self.vowel_share is not None and self.vowel_share < _LEAST_VOWELS
        unspeakable = few_vowels and (self.compressed or 1.0) >= _COMPRESSED_LETTERS
        marked = self.marks_share + self.symbol_share >= _MARKS_SHARE
        unspaced = marked and self.spaces_share < _SPACES_SHARE
        symbols = self.symbol_share >= _SYMBOL_SHARE
        many = self.scripts >= _ANY_SCRIPTS
        return mixed or many or unspeakable or unspaced or symbols or self._has_jumbled_words

    @property
    def _has_jumbled_words(self) -> bool:
        """Whether the text is random tokens of a vocabulary. Code has jumbled words too, but it can
        be compressed, and has one script."""
        if self.jumbled_share < _JUMBLED_SHARE or self.compressed is None:
            return False
        random = self.compressed >= _INCOMPRESSIBLE + _COMPRESSED_HEAD / self.characters
        return random or self.scripts >= _SCRIPTS

    @property
    def defect(self) -> str:
        """What is wrong with the text, as the end of a sentence that begins with "the answer"; ""
        if nothing is. `loop`, `tail` and the shares decide."""
        if self.has_odd_characters:
            return f"has {100 * self.odd_share:.0f} % characters that no language uses"
        if self.is_one_repeated_token:
            return f"repeats {quote_for_message(self.loop or 'one word')}"
        if self.is_one_repeated_phrase:
            return f"repeats the phrase {quote_for_message(self.loop)}"
        if self.tail:
            return f"ends in {quote_for_message(self.tail)} again and again"
        if self.few_words:
            return f"uses only {self.few_words} words, again and again"
        if self.mixes_scripts:
            return "mixes scripts or symbols at random"
        return ""

    @property
    def defect_as_second_half(self) -> str:
        """What is wrong with this text if it is the second half of one whose first half is
        language: it is random tokens. "" if it is not; a healthy answer may end in a table or a
        loop."""
        if self.characters < _LEAST_END:
            return ""
        if self.mixes_scripts or self.has_odd_characters:
            return "ends in scripts or symbols at random"
        return ""


def text_features(text: str) -> Features:
    """Return the features of a text. The time is below 1 ms for 2,000 characters."""
    size = len(text)
    if not size:
        return Features(0)
    loop, covered = _loop_unit_and_covered_length(text)
    spoken, words = _Letters(text), text.split()
    return Features(
        size,
        loop=loop,
        loop_share=round(covered / size, 4),
        tail=_repeated_tail_unit(text),
        few_words=_count_distinct_words_if_few(words),
        common_share=round(_common_word_share(text, words), 4),
        odd_share=round(max(0, spoken.kinds["odd"] - _count_incomplete_characters(text)) / size, 4),
        symbol_share=round(spoken.kinds["symbol"] / size, 4),
        marks_share=round(spoken.kinds["mark"] / size, 4),
        spaces_share=round(spoken.kinds["space"] / size, 4),
        jumbled_share=_share_of_jumbled_words(words),
        scripts=len(spoken.scripts),
        other_scripts_share=spoken.other_scripts_share,
        vowel_share=spoken.vowel_share,
        compressed=_compression_ratio(text),
    )


def _count_incomplete_characters(text: str) -> int:
    """Return how many replacement characters stand for bytes of characters that are not complete.
    In a run of up to three within the text, these are all but one; in a run at its end, which
    further tokens may have completed, all."""
    runs = [(one.end(), len(one[0])) for one in _BROKEN_CHARACTER.finditer(text)]
    return sum(size - (end < len(text)) for end, size in runs)


def _loop_unit_and_covered_length(text: str) -> tuple[str, int]:
    """Return (the shortest unit that is repeated up to the end of the text, the number of
    characters that its repetitions cover). ("", 0) if nothing is repeated often enough, or over too
    little of the text."""
    size = len(text)
    # A repeated unit repeats the last characters too. To look only where they stand is fast.
    last = text[-_LAST_OF_LOOP:]
    at = size - len(last)
    while at > 0 and (at := text.rfind(last, 0, at + len(last) - 1)) >= 0:
        period = size - len(last) - at
        if period > size // _PHRASE_REPEATS:
            break
        unit = text[-period:]
        repeats = _LOOP_REPEATS if period < _PHRASE else _PHRASE_REPEATS
        if not text.endswith(unit * repeats):
            continue
        start = size - period * repeats
        while start >= period and text.startswith(unit, start - period):
            start -= period
        if (size - start) >= _LOOP_SHARE * size:
            return unit, size - start
    return "", 0


def _repeated_tail_unit(text: str) -> str:
    """Return the short unit that is repeated at the end of the text; "" if none is. Units of which
    rulers and tables consist, such as "-" or blanks, do not count."""
    for period in range(1, _SHORT_LOOP + 1):
        unit = text[-period:]
        if text.endswith(unit * _TAIL_REPEATS) and not _RULERS.issuperset(unit):
            return unit
    return ""


def _count_distinct_words_if_few(words: Sequence[str]) -> int:
    """Return the number of different words in a text that uses only a few of them; 0 for any other
    text, and if there is only one."""
    different = len(set(words))
    if 1 < different <= min(_FEW_WORDS, _FEW_WORDS_SHARE * len(words)):
        return different
    return 0


def _common_word_share(text: str, words: Sequence[str]) -> float:
    if len(words) >= _LEAST_WORDS:
        return Counter(words).most_common(1)[0][1] / len(words)
    if len(text) < _LEAST_WORDS:
        return 0.0
    return Counter(text).most_common(1)[0][1] / len(text)


def _compression_ratio(text: str) -> float | None:
    """Return the compressed size divided by the size in bytes; None for a short text."""
    import zlib  # only a run's end needs it

    data = text.encode("utf-8", "replace")
    if len(data) < 64:
        return None
    return round(len(zlib.compress(data)) / len(data), 3)


def _share_of_jumbled_words(words: Sequence[str]) -> float:
    judged = [jumbled for jumbled in map(is_jumbled_word_or_none, words) if jumbled is not None]
    if len(judged) < _LEAST_JUDGED_WORDS:
        return 0.0
    return round(sum(judged) / len(judged), 4)


@lru_cache(maxsize=4096)  # the answers of a run share most words
def is_jumbled_word_or_none(word: str) -> bool | None:
    """Return whether a word is jumbled; None if it has too few letters."""
    if not _has_letters(word):
        return None
    return is_jumbled_word(word)


def _has_letters(word: str) -> bool:
    """Return whether the word has two letters or more."""
    if word.isalpha():  # as most words are
        return len(word) > 1
    return sum(map(str.isalpha, word)) > 1


def is_jumbled_word(word: str) -> bool:
    """Return whether a word is none of any language: `Features` says what such words have."""
    if word.isascii():  # one alphabet
        plain = word.isalpha() and word[1:].islower()  # as most words are
        return not plain and bool(_INSIDE.search(word))
    return bool(_INSIDE.search(word)) or sum(bool(one.search(word)) for one in _ALPHABETS) > 1


@lru_cache(maxsize=4096)  # most answers of a run use the same characters
def _character_kind_script_and_is_vowel(character: str) -> tuple[str, str, bool]:
    """Return (kind, script, whether it is a vowel) of a character. The kind is "letter", "space",
    "mark", "joint", "odd" or "symbol". The script is "" for what is no letter."""
    import unicodedata  # takes a millisecond to import; only a run's end needs it

    category = unicodedata.category(character)
    if category[0] == "L":
        script = unicodedata.name(character, "?").split(" ", 1)[0]
        plain = unicodedata.normalize("NFD", character)[0].lower()
        return "letter", _ONE_SCRIPT.get(script, script), plain in _VOWELS
    if character.isspace() or character in _WORD_MARKS:
        return "space", "", False
    if character in _PUNCTUATION:
        return "mark", "", False
    if category[0] in "MN" or category == "Cf":
        return "joint", "", False  # accents, digits, joiners
    if category[0] == "C" or character == "\N{REPLACEMENT CHARACTER}":
        return "odd", "", False
    return "symbol", "", False


class _Letters:
    """Counts of the kinds of characters in a text."""

    def __init__(self, text: str) -> None:
        self.kinds: Counter[str] = Counter()
        self.scripts: Counter[str] = Counter()
        self._vowels, self._size = 0, len(text)
        for character, count in Counter(text).items():
            kind, script, is_vowel = _character_kind_script_and_is_vowel(character)
            self.kinds[kind] += count
            if script:
                self.scripts[script] += count
                self._vowels += count * is_vowel

    @property
    def other_scripts_share(self) -> float:
        letters = self.kinds["letter"]
        if letters < _LEAST_LETTERS:
            return 0.0
        usual = sum(count for _, count in self.scripts.most_common(2))
        return round(1 - usual / letters, 4)

    @property
    def vowel_share(self) -> float | None:
        """The share of vowels among Latin letters; None if there are too few, as in a list of
        numbers with units, or letters of other scripts."""
        latin = self.scripts["LATIN"]
        if latin < max(_LEAST_LATIN, 0.9 * self.kinds["letter"], 0.6 * self._size):
            return None
        return round(self._vowels / latin, 4)


# -- the answers of a run --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetFeatures:
    """Features of the answers of one run, as they are stored with its result. All but `answers`
    count answers among those `looked_at`, a sample of them.

    `repeated` is the unit that most answers are made of from their first to their last character,
    and `repeated_answers` their number. `ended_in` is the short unit in which most answers end
    again and again, whatever is before it, and `ended_in_answers` their number. `prompt_words` is
    the number of words of a synthetic prompt. `equal` counts the answers whose text another prompt
    got too. `models` counts the model names that replies reported. `digest` is a hash of the texts
    in the order of their prompts: two runs with one digest answered equally."""

    answers: int = 0
    looked_at: int = 0
    characters: int = 0
    characters_per_token: float | None = None
    empty: int = 0
    collapsed: int = 0
    looping: int = 0
    ending_in_loop: int = 0
    odd: int = 0
    salad: int = 0
    repeated: str = ""
    repeated_answers: int = 0
    ended_in: str = ""
    ended_in_answers: int = 0
    prompt_words: int | None = None
    equal: int = 0
    equal_characters: int = 0  # of the shortest of these equal texts
    reasoning_only: int = 0
    reasoning_share: float = 0.0  # of all characters
    common_share: float | None = None  # median over the answers
    compressed: float | None = None  # median over the answers
    models: Mapping[str, int] = field(default_factory=dict)
    finish_reasons: Mapping[str, int] = field(default_factory=dict)
    digest: str = ""
    excerpts: tuple[str, ...] = ()

    def fraction_of_answers(self, count: int) -> float:
        """Return the share that `count` answers are of those `looked_at`, 0 to 1; 0 if there are
        none."""
        if not self.looked_at:
            return 0.0
        return count / self.looked_at

    @property
    def repeating_answer_count(self) -> int:
        """The number of answers that repeat themselves in the most common way."""
        return max(self.collapsed, self.looping, self.ending_in_loop)


@dataclass(frozen=True, slots=True)
class ProbePartOutcome:
    """The answers of one part of the probe: how many there are, how many of them are broken, how
    many contain their code word (`remembered`), and what is wrong with one of the broken ones."""

    answers: int
    broken: int
    remembered: int
    defect: str = ""
    excerpt: str = ""

    @property
    def failed(self) -> bool:
        """Whether so many answers are broken that this part of the probe counts as broken."""
        return self.broken >= max(min(_LEAST_BROKEN, self.answers), _BROKEN_SHARE * self.answers)


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """What a probe found, as it is stored. `places` has the outcome of each ProbePart; `skipped`
    says why a part of the probe is missing. The other fields count what it sent, which is no part
    of the load: requests, and tokens by usage (None if a reply had no usage)."""

    places: Mapping[str, ProbePartOutcome] = field(default_factory=dict)
    characters_per_token: float | None = None
    skipped: str = ""
    requests: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def failed(self) -> bool:
        """Whether the answers of a part of the probe are broken."""
        return any(part.failed for part in self.places.values())

    @property
    def is_sound(self) -> bool:
        """Whether there are answers, and those of no part of the probe are broken."""
        return bool(self.places) and not self.failed

    @property
    def broken_answer_count(self) -> int:
        return sum(part.broken for part in self.places.values())


@dataclass(frozen=True, slots=True)
class TextFinding:
    """One statement about the text of a result. With `level` "error" the result is invalid; "warn"
    and "info" are a mark and a note. `excerpt` is a part of the text."""

    level: str
    code: str
    text: str
    excerpt: str = ""


def describe_text_fault(code: str, subject_template: str, excerpt: str = "") -> str:
    """Return a clause that says what is wrong with a load. `code` is the code of its finding; any
    code besides USAGE and PROMPT_CUT, also "", means that its text is no answer, and only then the
    clause ends with `excerpt`. `subject_template` has {} in place of the thing that is wrong: "the
    {} of B" makes "the text of B is not an answer: EXCERPT"."""
    if code == USAGE:
        return f"{subject_template.format('usage')} is not credible"
    if code == PROMPT_CUT:
        return f"{subject_template.format('prompts')} were cut"
    clause = f"{subject_template.format('text')} is not an answer"
    if excerpt:
        clause += f": {excerpt}"
    return clause


@dataclass(frozen=True, slots=True)
class TextReport:
    """All that is stored of the text of a benchmark: the features of its answers, the outcome of
    the probe, and what follows from both."""

    load: SetFeatures = SetFeatures()
    probe: ProbeOutcome | None = None
    findings: tuple[TextFinding, ...] = ()


def answer_text_rows(report: TextReport | None) -> tuple[tuple[str, str], ...]:
    """Return (title, value) for each line that shows what the answers of a result said; () if
    nobody looked at them (`report` is None)."""
    if report is None:
        return ()
    load, rows = report.load, []
    if load.excerpts:
        rows.append(("text", clean_text(load.excerpts[0])))
    if load.finish_reasons:
        ends = [f"{clean_text(name)} {count:,}" for name, count in load.finish_reasons.items()]
        text = ", ".join(ends)
        if load.characters_per_token is not None:
            text += f"; {load.characters_per_token:.1f} characters per token"
        rows.append(("ended by", text))
    if report.probe is not None:
        rows.append(("text probe", _probe_summary_text(report.probe)))
    return tuple(rows)


def _probe_summary_text(probe: ProbeOutcome) -> str:
    parts = [
        f"{_PROBE_PARTS.get(name, name)} {part.answers - part.broken} of {part.answers} sound"
        for name, part in probe.places.items()
    ]
    return ", ".join(parts) or f"none: {clean_text(probe.skipped)}"


def features_of_answers(
    answers: Sequence[Answer],
    finish_reasons: Mapping[str, int] | None = None,
    total_answers: int | None = None,
) -> SetFeatures:
    """Return the features of the answers of a run. `answers` may be a sample of `total_answers`
    answers. `finish_reasons` has the count of each reason among all answers; by default it is
    counted in the sample."""
    if not answers:
        return SetFeatures(answers=total_answers or 0, finish_reasons=dict(finish_reasons or {}))
    each = [text_features(answer.all_text) for answer in answers]
    repeated, repeated_answers = _most_common_unit(
        one.loop for one in each if one.is_only_repetition
    )
    ends = [answer.end or answer.all_text for answer in answers]
    ended_in, ended_in_answers = _most_common_unit(filter(None, map(_repeated_tail_unit, ends)))
    equal = find_equal_answers(answers)
    characters = sum(answer.total_character_count for answer in answers)
    thought = characters - sum(answer.text_character_count for answer in answers)
    reasons = Counter(answer.finish_reason or "none" for answer in answers)
    models = Counter(answer.model for answer in answers if answer.model)
    return SetFeatures(
        answers=len(answers) if total_answers is None else total_answers,
        looked_at=len(answers),
        characters=characters,
        characters_per_token=characters_per_token(answers),
        empty=sum(answer.is_empty for answer in answers),
        collapsed=sum(one.is_one_repeated_token for one in each),
        looping=sum(one.is_one_repeated_phrase for one in each),
        ending_in_loop=sum(bool(_loop_unit_and_covered_length(end)[0]) for end in ends),
        odd=sum(one.has_odd_characters for one in each),
        salad=sum(one.mixes_scripts for one in each),
        repeated=clean_text(repeated, EXCERPT_CHARACTERS),
        repeated_answers=repeated_answers,
        ended_in=clean_text(ended_in, EXCERPT_CHARACTERS),
        ended_in_answers=ended_in_answers,
        equal=len(equal),
        equal_characters=min((answer.total_character_count for answer in equal), default=0),
        reasoning_only=sum(answer.is_only_reasoning for answer in answers),
        reasoning_share=round(thought / max(1, characters), 4),
        common_share=_median([one.common_share for one in each]),
        compressed=_median([one.compressed for one in each if one.compressed is not None]),
        models={
            clean_text(name, EXCERPT_CHARACTERS): count for name, count in models.most_common(4)
        },
        finish_reasons=dict(reasons.most_common() if finish_reasons is None else finish_reasons),
        digest=hash_of_answer_texts(answers),
        excerpts=_excerpts_of_three_answers(answers),
    )


def find_equal_answers(answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers whose text a different prompt got too, apart from numbers in it, in their
    order. Answers without text do not count."""
    prompts: dict[tuple[str, str], set[str]] = {}
    told = [(answer, answer.text_and_end_without_numbers) for answer in answers]
    for answer, text in told:
        if not answer.is_empty:
            prompts.setdefault(text, set()).add(answer.prompt)
    return [answer for answer, text in told if len(prompts.get(text, ())) > 1]


def characters_per_token(answers: Iterable[Answer]) -> float | None:
    """Return the characters per output token over all answers with output tokens by usage; None if
    there are none."""
    characters = tokens = 0
    for answer in answers:
        if answer.output_tokens:
            characters += answer.total_character_count
            tokens += answer.output_tokens
    if not tokens:
        return None
    return round(characters / tokens, 3)


def hash_of_answer_texts(answers: Iterable[Answer]) -> str:
    """Return a hash of the prompts with the texts of their answers. It does not depend on the order
    in which the answers came."""
    import hashlib  # only a run's end needs it

    whole = hashlib.sha256()
    for prompt, (text, end, size) in sorted(
        (answer.prompt, answer.equality_key) for answer in answers
    ):
        whole.update(f"{prompt}\0{text}\0{end}\0{size}\0".encode("utf-8", "replace"))
    return whole.hexdigest()[:16]


def quote_for_message(text: str, limit: int = EXCERPT_CHARACTERS) -> str:
    """Return a text in quotes as a message can contain it: cleaned, with visible line breaks, cut
    to `limit` characters. A repeated character stays visible."""
    visible = text[: 4 * limit].replace("\n", "\\n").replace("\t", "\\t")
    cleaned = clean_text(visible)
    if not cleaned.strip():
        cleaned = "".join(map(_escape_character, text[:8]))
    if len(cleaned) > limit:
        cleaned = f"{cleaned[: limit - 1]}…"
    return f'"{cleaned}"'


def _escape_character(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def answer_excerpt(answer: Answer) -> str:
    """Return the beginning of an answer for a message; an answer without text says so."""
    if not answer.all_text:
        return "(no text)"
    if answer.is_only_reasoning:
        return f"(reasoning) {quote_for_message(answer.all_text)}"
    return quote_for_message(answer.text)


def _most_common_unit(units: Iterable[str]) -> tuple[str, int]:
    """Return (the repeated unit that occurs most often, how often it occurs); ("", 0) if there is
    none."""
    counts = Counter(map(_first_rotation_of_loop, units))
    return next(iter(counts.most_common(1)), ("", 0))


def _first_rotation_of_loop(loop: str) -> str:
    """Return the same text for all rotations of a repeated unit: "ab" for "ab" and "ba"."""
    return min(loop[i:] + loop[:i] for i in range(len(loop)))


def _excerpts_of_three_answers(answers: Sequence[Answer]) -> tuple[str, ...]:
    """Return excerpts of the first, the middle and the last answer, equal ones once."""
    chosen = dict.fromkeys((0, len(answers) // 2, len(answers) - 1))
    return tuple(dict.fromkeys(answer_excerpt(answers[place]) for place in chosen))


def _median(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return round(sorted(values)[len(values) // 2], 4)
