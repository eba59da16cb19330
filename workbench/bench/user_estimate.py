"""How many users a server serves within limits, as one number for a comparison. All functions are
pure.

Unlike the search of user_capacity.py, which proves that a level holds or fails, an estimate takes
one run at each level. Its error is that of one run; experiments repeat it on fresh servers, and
judge the pairs. The number lies between the highest level that kept the limits and the lowest above
it that broke one, where the line between the logarithms of the latencies meets the limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from workbench.model.lazy_dataclass import dataclass

_FINE_GAP_SHARE = 0.1  # of the users that keep the limits: the search ends at smaller gaps
_MIN_SHARE_FROM_ENDS = 0.25  # of a gap: a new level lies at least this far from both ends
_CLIFF_LOG_RATIO = math.log(
    2.0
)  # a latency further above its limit says nothing about the way there


@dataclass(frozen=True, slots=True)
class UserEstimate:
    """The levels that were measured so far. `ratios` has for each number of users the logarithm of
    the latency that the wanted share of requests kept, divided by its limit: of the limit that is
    worst.
    """

    ratios: Mapping[int, float]
    first: int
    most: int

    @property
    def lowest_users_over_limit(self) -> int | None:
        """The lowest level that broke a limit; None if none did."""
        return min((users for users, ratio in self.ratios.items() if ratio > 0), default=None)

    @property
    def highest_users_within_limits(self) -> int | None:
        """The highest level that kept all limits, below the lowest that broke one; None if none
        did."""
        breaks = self.lowest_users_over_limit
        kept = [users for users in self.ratios if breaks is None or users < breaks]
        return max(kept, default=None)

    def next_level(self) -> int | None:
        """Return the number of users to measure next. None if the estimate is complete."""
        low, high = self.highest_users_within_limits, self.lowest_users_over_limit
        if not self.ratios:
            return self.first
        if low is None:
            assert high is not None
            return high // 2 or None
        if high is None:
            return min(2 * low, self.most) if low < self.most else None
        gap = high - low
        if gap <= max(1, int(_FINE_GAP_SHARE * low)):
            return None
        wanted = (low + high) / 2
        if self.ratios[high] <= _CLIFF_LOG_RATIO:
            wanted = self._users_at_limit(low, high)
        inner = min(
            max(wanted, low + _MIN_SHARE_FROM_ENDS * gap), high - _MIN_SHARE_FROM_ENDS * gap
        )
        return min(max(round(inner), low + 1), high - 1)

    def estimated_users(self) -> float:
        """Return the estimate: 0 if one user breaks a limit already."""
        low, high = self.highest_users_within_limits, self.lowest_users_over_limit
        if low is None:
            return 0.0
        if high is None:
            return float(low)
        return self._users_at_limit(low, high)

    def _users_at_limit(self, low: int, high: int) -> float:
        """Return where the latency meets its limit between two levels."""
        below, above = -self.ratios[low], min(self.ratios[high], _CLIFF_LOG_RATIO)
        return low + (high - low) * below / (below + above)
