"""Think time: how long a user pauses between the end of an answer and the next request."""

from __future__ import annotations

import random
import re
from typing import NamedTuple

from workbench.model.errors import InputError

_MOST_S = 3600.0
_NUMBER = r"\d{1,6}(?:\.\d{1,6})?"
_TEXT = re.compile(rf"(?P<exp>exp:)?(?P<low>{_NUMBER})(?:-(?P<high>{_NUMBER}))?")


class ThinkTime(NamedTuple):
    """Pauses between `low_s` and `high_s` seconds, all equally likely. With `exponential`, both are
    the mean of pauses of an exponential distribution, as between people who do not know each other.
    """

    low_s: float
    high_s: float
    exponential: bool = False

    @property
    def mean_s(self) -> float:
        return (self.low_s + self.high_s) / 2

    def pause_s(self, seed: int, index: int) -> float:
        """Return the pause after request `index`. It depends only on the seed and the index, so
        that A and B of a comparison get equal pauses."""
        if self.low_s == self.high_s and not self.exponential:
            return self.low_s
        source = random.Random(f"{seed}/think/{index}")
        if self.exponential:
            return source.expovariate(1 / self.mean_s)
        return source.uniform(self.low_s, self.high_s)


def parse_think_time(text: str) -> ThinkTime:
    """Parse a think time in seconds: "5", "2-8" or "exp:5". Raises InputError for another text."""
    found = _TEXT.fullmatch(text.strip())
    if found is not None:
        low, high = float(found["low"]), float(found["high"] or found["low"])
        exponential = found["exp"] is not None
        if low <= high <= _MOST_S and high > 0 and not (exponential and found["high"]):
            return ThinkTime(low, high, exponential)
    raise InputError(
        f"{text!r} is not a think time of at most {_MOST_S:,.0f} s",
        next_step="give seconds: 5, or 2-8 for pauses between the two, or exp:5 for an exponential "
        "distribution with that mean",
    )
