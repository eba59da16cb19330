"""The words of several answers to plain questions, looked at together.

A single answer of a few dozen tokens says little about its words: a model may write names, numbers
or code. Many answers together say more. Every language repeats its small words, so a set of answers
in which hardly a word occurs twice is not language: it is drawn from a vocabulary at random. And a
language with capital letters begins its sentences with one, so a text in which they stand anywhere
has lost the order of its words.

Languages that write no spaces, and those without capital letters, are not judged by this.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, product

from workbench.model.answer_text import Answer, is_jumbled_word

# Measured with 110 texts: prose in 90 languages, and 10 kinds of code. In 24 pieces of 290
# characters, at most 0.83 of the words are different. Random tokens of six vocabularies: 0.98.
_LEAST_WORDS, _DIFFERENT = 250, 0.93
# In 9 pieces of 75 characters, as READY asks for: prose up to 0.98, but then without jumbled words.
_LEAST_FEW_WORDS, _DIFFERENT_OF_FEW, _JUMBLED_OF_FEW = 40, 0.97, 0.05
# The ten most common words of prose in 498 languages are 11 to 30 % of 400 words and more. Of
# letters in scripts without spaces, they are 22 % at least, and of 150 words, 16 %. Random words of
# a vocabulary of 1,000: 5 %, and of 200 of one of 3,600: 7 %; random ideographs or syllables: 4 %.
_MOST_COMMON = 10
_LEAST_OF_WORDS, _COMMON_OF_WORDS = 400, 0.07
_LEAST_OF_FEW_WORDS, _COMMON_OF_FEW_WORDS = 150, 0.08
_LEAST_EACH = 4  # words of an answer: babble of a tiny model in a rare script has one or two
_LEAST_OF_LETTERS, _COMMON_OF_LETTERS = 150, 0.09
# A short answer of a few sentences has more different words; tables and data need not.
_LEAST_REPEATED, _FEW_DIFFERENT, _PROSE_LETTERS = 150, 24, 0.85
_LEAST_TEXTS = 4  # one text again and again is another kind of fault
_UNSPACED_SHARE = 0.3  # of the letters
_UNSPACED = re.compile("[\u0e00-\u0eff\u0f00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_STARTS = re.compile(r"(?<=[^\W\d_]{2}[.!?]) +([^\W\d_])")
_WORD_STARTS = re.compile(r"(?<=[^\W_][^\S\n])([^\W\d_])")
_LEAST_SENTENCES, _LOWER_SHARE, _CASED_SHARE = 12, 0.6, 0.6
_SPACED = re.compile(  # Latin, Greek, Cyrillic, Hebrew, Arabic, Hangul
    "[A-Za-z\u00c0-\u024f\u0370-\u04ff\u0590-\u06ff\uac00-\ud7af]"
)
_LEAST_SPACED, _LEAST_SPACES = 80, 0.03
_LEAST_SPELLED, _SPELLED_SHARE = 20, 0.8
# Each word once more; no language does this with more than a word here and there.
_LEAST_DOUBLED, _DOUBLED_SHARE, _DOUBLED_WORDS = 12, 0.3, 4
_LEAST_LETTERS_SHARE = 0.2
_DIGITS = re.compile(r"\d+")
_LEAST_EQUAL_WORDS, _LEAST_EQUAL_CHARACTERS = 8, 40  # shorter answers are often alike
_DIFFERENT_WORDS = 2
_LEAST_BEGINNING = 20  # words: the sentences with which a model begins are shorter
_TEMPLATE_MARK = re.compile(
    r"<\|[a-z_]{2,24}\|>|<\uff5c[^<>]{2,40}\uff5c>|<(?:start|end)_of_turn>|\[/?INST\]|</?s>"
    r"|\A\s*</think>"  # the end of reasoning whose beginning the server took away
)


def why_words_are_unrelated(answers: Sequence[Answer]) -> str:
    """Return why the words of these answers are no language, as the end of a sentence; "" if they
    may be one, or if there are too few. The words of a language repeat."""
    # A prompt that is asked twice may get the same answer twice.
    texts = list(dict.fromkeys(answer.all_text for answer in answers))
    words = [word for text in texts for word in text.split() if _count_letters(word) > 1]
    plain = [word.strip(".,;:!?\"'()[]").lower() for word in words]
    whole = "".join(texts)
    if _language_has_no_spaces(whole) or _share_of_spaces(whole) < _LEAST_SPACES:
        letters = list(filter(str.isalpha, whole))
        return _why_frequencies_are_flat(letters, "letters", _LEAST_OF_LETTERS, _COMMON_OF_LETTERS)
    if len(plain) < _LEAST_FEW_WORDS:
        return ""
    few = len(plain) >= _LEAST_REPEATED and len(set(plain)) <= _FEW_DIFFERENT
    alike = len({_DIGITS.sub("0", text) for text in texts}) < _LEAST_TEXTS
    if few and not alike and _count_letters(whole) >= _PROSE_LETTERS * len("".join(whole.split())):
        return f"all their {len(plain)} words are only {len(set(plain))} different ones"
    different = len(set(plain)) / len(plain)
    if len(plain) >= _LEAST_WORDS:
        unrelated = different >= _DIFFERENT
    else:
        jumbled = sum(map(is_jumbled_word, words)) / len(words)
        unrelated = different >= _DIFFERENT_OF_FEW and jumbled >= _JUMBLED_OF_FEW
    if unrelated:
        only_once = f"{100 * different:.0f} % occur only once, as in no language"
        return f"of their {len(plain)} words, {only_once}"
    if len(plain) >= _LEAST_OF_WORDS:
        return _why_frequencies_are_flat(plain, "words", _LEAST_OF_WORDS, _COMMON_OF_WORDS)
    if len(plain) >= _LEAST_EACH * len(texts):
        return _why_frequencies_are_flat(plain, "words", _LEAST_OF_FEW_WORDS, _COMMON_OF_FEW_WORDS)
    return ""


def _why_frequencies_are_flat(
    units: Sequence[str], name: str, least_units: int, least_common_share: float
) -> str:
    """Return that hardly one of the words or letters `units` is more common than another, as the
    end of a sentence; "" if some are, as in every language, or if there are fewer than
    `least_units`. `name` is what a unit is called. `least_common_share` is the share that the most
    common units have at least in every language."""
    size = len(units)
    if size < least_units:
        return ""
    common = sum(count for _, count in Counter(units).most_common(_MOST_COMMON)) / size
    if common >= least_common_share:
        return ""
    return (
        f"the {_MOST_COMMON} most common of their {size} {name} are {100 * common:.0f} % of them, as"
        " in no language"
    )


def why_words_are_unordered(answers: Sequence[Answer]) -> str:
    """Return why the words of these answers are in no order, as a clause; "" if they may be in
    one, or if there are too few sentences. Sentences begin with a capital letter, if capital
    letters are used at all."""
    texts = [answer.text for answer in answers]
    if _share_of_cased_letters("".join(texts)) < _CASED_SHARE:
        return ""
    cased = lower = inside = 0
    for text in texts:
        firsts = [letter for letter in _STARTS.findall(text) if letter.lower() != letter.upper()]
        cased += len(firsts)
        lower += sum(map(str.islower, firsts))
        inside += sum(map(str.isupper, _WORD_STARTS.findall(text)))
    if cased < _LEAST_SENTENCES or lower < _LOWER_SHARE * cased or inside < cased / 2:
        return ""
    return (
        f"{lower} of {cased} sentences begin with a small letter, while capital letters stand"
        " inside sentences"
    )


def are_nearly_equal(one: str, other: str, ignored_words: Sequence[str] = ()) -> bool:
    """Return whether two texts are equal, apart from one place of up to two words. If the shorter
    one has fewer than 8 words, they must be equal and have 40 characters or more. Case, digits and
    `ignored_words` (in lower case) do not count."""
    a, b = _words_without_names(one, ignored_words), _words_without_names(other, ignored_words)
    shorter, longer = sorted((a, b), key=len)
    if len(shorter) < _LEAST_EQUAL_WORDS:
        return a == b and len("".join(a)) >= _LEAST_EQUAL_CHARACTERS
    begin = _count_common_beginning(shorter, longer)
    end = _count_common_beginning(shorter[begin:][::-1], longer[begin:][::-1])
    return len(longer) - begin - end <= _DIFFERENT_WORDS


def texts_begin_alike(one: str, other: str, ignored_words: Sequence[str] = ()) -> bool:
    """Return whether the shorter of two texts is the beginning of the other, apart from one place
    of up to a fifth of its words. False if it has fewer than 20 words. Case, digits,
    `ignored_words` (in lower case) and its last word, which may be cut, do not count."""
    a, b = _words_without_names(one, ignored_words), _words_without_names(other, ignored_words)
    shorter, longer = sorted((a, b), key=len)
    if len(shorter) < _LEAST_BEGINNING:
        return False
    begin, counts = _count_common_beginning(shorter, longer), range(len(shorter) // 5 + 1)
    for left_out, put_in in product(counts, counts):
        rest, whole = shorter[begin + left_out :], longer[begin + put_in :]
        if rest[:1] != whole[:1] or len(rest) > len(whole):
            continue
        if _count_common_beginning(rest, whole) >= len(rest) - 1:
            return True
    return False


def _count_common_beginning(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many words both sequences begin with."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (x, y) in enumerate(pairs) if x != y), min(len(one), len(other)))


def _words_without_names(text: str, ignored_words: Sequence[str]) -> list[str]:
    plain = _DIGITS.sub("0", text.lower())
    for name in ignored_words:
        plain = plain.replace(name, "#")
    return plain.split()


def find_chat_template_mark(answer: Answer) -> str:
    """Return a mark of a chat template in the text of an answer, such as "<|im_end|>"; "" if there
    is none. A server whose template fits the model consumes these marks."""
    found = _TEMPLATE_MARK.search(answer.text)
    if not found:
        return ""
    return found[0].strip()


def has_enough_letters(text: str) -> bool:
    """Return whether a text has letters, as each answer to a plain question has. Most of a text may
    be digits and marks, as in a table."""
    visible = "".join(text.split())
    return _count_letters(visible) > _LEAST_LETTERS_SHARE * len(visible)


def why_spaces_are_missing(text: str) -> str:
    """Return that a text in a language with spaces has none, as the end of a sentence that begins
    with "the answer"; "" if it has some. A broken detokenizer loses them."""
    letters = len(_SPACED.findall(text))
    if letters < max(_LEAST_SPACED, 0.8 * _count_letters(text)):
        return ""
    if _share_of_spaces(text) >= _LEAST_SPACES:
        return ""
    return "has no spaces between its words"


def why_text_is_spelled_out(text: str) -> str:
    """Return "" for a usual text. If a text has a space after each letter, as a broken detokenizer
    writes, return that as the end of a sentence that begins with "the answer"."""
    words = list(filter(_count_letters, text.split()))
    single = sum(len(word) == 1 for word in words)
    if len(words) < _LEAST_SPELLED or single < _SPELLED_SHARE * len(words):
        return ""
    return "has a space after each letter"


def why_words_are_doubled(text: str) -> str:
    """Return that a text says its words twice in a row, as the end of a sentence that begins with
    "the answer"; "" if it does not. Speculation that emits an accepted token again does this."""
    words = list(filter(_count_letters, text.lower().split()))
    doubled = [word for before, word in pairwise(words) if before == word]
    if len(words) < _LEAST_DOUBLED or len(doubled) < _DOUBLED_SHARE * len(words):
        return ""
    if len(set(doubled)) < _DOUBLED_WORDS:
        return ""
    return "says its words twice"


def _share_of_spaces(text: str) -> float:
    return sum(map(str.isspace, text)) / max(1, len(text))


def _count_letters(word: str) -> int:
    return sum(map(str.isalpha, word))


def _share_of_cased_letters(text: str) -> float:
    """Return the share of the letters that are small or capital ones."""
    cased = sum(map(str.islower, text)) + sum(map(str.isupper, text))
    return cased / max(1, _count_letters(text))


def _language_has_no_spaces(text: str) -> bool:
    letters = _count_letters(text)
    return len(_UNSPACED.findall(text)) > _UNSPACED_SHARE * letters
