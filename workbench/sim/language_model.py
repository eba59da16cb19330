"""The language model of the simulated engines: an n-gram model over the texts of the package.

It gives each token a log probability, so that a comparison of answers needs no GPU. Its vocabulary
is that of the texts, and its probabilities add up to 1 over this vocabulary. It can be damaged as
real servers are damaged, by an amount that is known.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import cache
from heapq import nlargest
from math import cos, exp, log, pi, sqrt
from pathlib import Path

from workbench.model.lazy_dataclass import dataclass
from workbench.sim.reply_text import GARBAGE

# The files themselves: workbench/quality/texts.py needs a newer Python than the simulation.
TEXTS = Path(__file__).parents[1] / "quality" / "texts"
PIECE = re.compile(r"\w{1,7}|[^\w\s]")  # about the pieces of a byte-pair tokenizer for English
_SPACED = re.compile(rf"\s*(?:<s>|<assistant>|{PIECE.pattern})")
_VOCABULARY_BITS = 24
_MASK = (1 << _VOCABULARY_BITS) - 1
# Weights of the distributions after two tokens, after one token, and without context.
_AFTER_TWO, _AFTER_ONE = 0.15, 0.35
_UNSEEN = 0.5  # count of a token of the vocabulary that is in no text
_SPARE = 1e-4  # of the probability, for all tokens outside the vocabulary together
_CANDIDATES = 64
_SPREAD = 1.38  # of the divergence from position to position: sd 2.4 times the mean, as measured
_BATCH_KLD = 1e-7  # of a batch of several requests: real kernels differ in their last bits
_MOST_TILT = 12.0
_TURN = re.compile(r"(?:^|\n)\s*(?:User:|user )")


@dataclass(frozen=True)
class Damage:
    """How the model is damaged. `kld` is the mean Kullback-Leibler divergence of its distributions
    from those of the undamaged model. The other fields make it answer without sense: in a batch of
    several requests, from the second turn of a conversation on, or only exclamation marks."""

    kld: float = 0.0
    together: bool = False
    second_turn: bool = False
    garbage: bool = False


_UNDAMAGED = Damage()


@dataclass(frozen=True)
class Predicted:
    """The distribution of one token: its log probability, and the most probable tokens with theirs,
    the most probable first."""

    log_probability: float
    top: tuple[tuple[int, float], ...]


def token_ids_of(text: str) -> list[int]:
    """Return the token ids of a text."""
    return [_token_id_of_piece(piece) for piece in _SPACED.findall(text)]


def pieces_of(ids: Sequence[int]) -> list[str]:
    """Return the text of each token. A token that is not in the vocabulary has its number."""
    known = _shared_model().pieces
    return [known.get(token, f" t{token}") for token in ids]


def text_of_tokens(ids: Sequence[int]) -> str:
    """Return the text of tokens."""
    return "".join(pieces_of(ids))


def count_user_turns(text: str) -> int:
    """Return the number of turns of the user in a prompt."""
    return len(_TURN.findall(text))


def _token_id_of_piece(piece: str) -> int:
    return zlib.crc32(piece.encode("utf-8", "replace")) & _MASK


class _Ngrams:
    """The counts of the texts, and what follows from them."""

    def __init__(self) -> None:
        self.pieces: dict[int, str] = {}
        self.after_one: dict[int, Counter[int]] = {}
        self.after_two: dict[tuple[int, int], Counter[int]] = {}
        counts: Counter[int] = Counter()
        for path in sorted(TEXTS.glob("*.txt")):
            self._count_ngrams(_SPACED.findall(path.read_text(encoding="utf-8")), counts)
        total = sum(counts.values()) + _UNSEEN * len(counts)
        self.alone = {
            token: (1 - _SPARE) * (count + _UNSEEN) / total for token, count in counts.items()
        }
        self.common = nlargest(_CANDIDATES, self.alone, key=lambda token: self.alone[token])
        self.tokens = sorted(self.alone)

    def _count_ngrams(self, pieces: Sequence[str], counts: Counter[int]) -> None:
        """Add the tokens of one text to `counts`, and those that follow one or two others to
        `after_one` and `after_two`."""
        ids = [_token_id_of_piece(piece) for piece in pieces]
        self.pieces.update(zip(ids, pieces))  # noqa: B905
        counts.update(ids)
        for place, token in enumerate(ids[1:], start=1):
            self.after_one.setdefault(ids[place - 1], Counter())[token] += 1
            if place > 1:
                self.after_two.setdefault((ids[place - 2], ids[place - 1]), Counter())[token] += 1


@cache
def _shared_model() -> _Ngrams:
    return _Ngrams()


def _base_tilt_sign(token: int) -> int:
    """Return 1 or -1, the half of the vocabulary to which a token belongs when a distribution is
    tilted. A context can swap the two halves."""
    return 1 if zlib.crc32(b"side %d" % token) & 1 else -1


class LanguageModel:
    """The model of one server, with its damage."""

    def __init__(self, damage: Damage = _UNDAMAGED) -> None:
        self.damage = damage

    def predict(
        self,
        context: Sequence[int],
        token: int,
        top: int,
        *,
        batch_size: int = 1,
        turn_count: int = 1,
    ) -> Predicted:
        """Return the distribution after `context`: the log probability of `token`, and the `top`
        most probable tokens. `batch_size` is the number of requests of the batch, and `turn_count`
        the number of turns in the prompt."""
        damage = self.damage
        if damage.garbage:
            return _single_token_distribution(_token_id_of_piece(GARBAGE), token, top)
        if (damage.together and batch_size > 1) or (damage.second_turn and turn_count > 1):
            return _uniform_distribution(context, token, top)
        divergence = damage.kld * _divergence_factor_of_position(context) if damage.kld else 0.0
        if batch_size > 1:
            divergence += _BATCH_KLD
        return _Distribution(context, divergence).predict(token, top)


class _Distribution:
    """The distribution after one context. With a `divergence`, half of the probable tokens are more
    probable, and the other half less, so that the Kullback-Leibler divergence from the distribution
    without it is exactly this number."""

    def __init__(self, context: Sequence[int], divergence: float) -> None:
        ngrams = _shared_model()
        one = ngrams.after_one.get(context[-1]) if context else None
        two = ngrams.after_two.get((context[-2], context[-1])) if len(context) > 1 else None
        self._parts = [
            (weight / sum(counts.values()), counts)
            for weight, counts in ((_AFTER_ONE, one), (_AFTER_TWO, two))
            if counts
        ]
        self._alone_weight = 1.0 - sum(
            weight * sum(counts.values()) for weight, counts in self._parts
        )
        self._ngrams = ngrams
        self._flip = 1 if _hash_context(context) & 1 else -1
        self._probable = {token for _, counts in self._parts for token in counts}
        self._probable.update(ngrams.common)
        self._tilt, self._scale = 0.0, 0.0
        if divergence > 0:
            plus = minus = 0.0
            for token in self._probable:
                share = self._probability_before_tilt(token)
                if self._tilt_sign(token) > 0:
                    plus += share
                else:
                    minus += share
            self._tilt = _find_tilt_for_divergence(plus, minus, divergence)
            self._scale = _log_normalizer(plus, minus, self._tilt)

    def predict(self, token: int, top: int) -> Predicted:
        """Return the log probability of `token` and those of the `top` most probable tokens."""
        if not top:
            return Predicted(self._log_probability(token), ())
        best = nlargest(top, ((self._log_probability(one), -one) for one in self._probable))
        return Predicted(
            self._log_probability(token), tuple((-one, logged) for logged, one in best)
        )

    def _probability_before_tilt(self, token: int) -> float:
        outside = _SPARE / len(self._ngrams.tokens)
        share = self._alone_weight * self._ngrams.alone.get(token, outside)
        return share + sum(weight * counts[token] for weight, counts in self._parts)

    def _log_probability(self, token: int) -> float:
        tilt = self._tilt_sign(token) * self._tilt if token in self._probable else 0.0
        return log(self._probability_before_tilt(token)) + tilt - self._scale

    def _tilt_sign(self, token: int) -> int:
        return self._flip * _base_tilt_sign(token)


def _log_normalizer(raised_probability: float, lowered_probability: float, tilt: float) -> float:
    """Return the logarithm of the sum of all probabilities after a tilt. Before it,
    `raised_probability` is the probability of all tokens that become more probable, and
    `lowered_probability` that of those that become less probable."""
    return log(1 + raised_probability * (exp(tilt) - 1) + lowered_probability * (exp(-tilt) - 1))


def _find_tilt_for_divergence(
    raised_probability: float, lowered_probability: float, divergence: float
) -> float:
    """Return the tilt that makes the Kullback-Leibler divergence `divergence`, at most _MOST_TILT.
    The other two are the probabilities, before the tilt, of all tokens that become more or less
    probable. The divergence grows with the tilt, so it is found by halving."""
    low, high = 0.0, _MOST_TILT
    for _ in range(48):
        middle = (low + high) / 2
        made = _log_normalizer(raised_probability, lowered_probability, middle) - middle * (
            raised_probability - lowered_probability
        )
        low, high = (middle, high) if made < divergence else (low, middle)
    return (low + high) / 2


def _divergence_factor_of_position(context: Sequence[int]) -> float:
    """Return a factor for the divergence of one position. Its mean over positions is 1."""
    drawn = _hash_context(context)
    first, second = (drawn & 0xFFFF) + 1, drawn >> 16
    normal = sqrt(-2 * log(first / 65537)) * cos(2 * pi * second / 65536)
    return exp(_SPREAD * normal - _SPREAD**2 / 2)


def _hash_context(context: Sequence[int]) -> int:
    return zlib.crc32(repr(tuple(context[-4:])).encode())


def _single_token_distribution(certain_token: int, token: int, top: int) -> Predicted:
    """Return a distribution in which `certain_token` has nearly all of the probability: the log
    probability of `token`, and the `top` most probable tokens."""
    others = _shared_model().tokens
    rest = log(_SPARE / len(others))
    after = [one for one in others[:top] if one != certain_token][: max(0, top - 1)]
    best = ((certain_token, log(1 - _SPARE)), *((one, rest) for one in after))
    return Predicted(log(1 - _SPARE) if token == certain_token else rest, best[:top])


def _uniform_distribution(context: Sequence[int], token: int, top: int) -> Predicted:
    """Return a distribution without sense: each token of the vocabulary is as probable as any
    other, and which ones come first depends only on the context."""
    tokens = _shared_model().tokens
    first = _hash_context(context) % len(tokens)
    each = log((1 - _SPARE) / len(tokens))
    chosen = [tokens[(first + 7 * place) % len(tokens)] for place in range(top)]
    return Predicted(each, tuple((one, each) for one in chosen))
