"""Student's t distribution without scipy: the regularized incomplete beta function by its continued fraction
(Lentz's method; DLMF 8.17.22), and the quantile by bisection."""

from __future__ import annotations

import math

_TINY = 1e-300
_TERMS = 400


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), the regularized incomplete beta function, 0 <= x <= 1, to about 1e-14."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only below its mean
        return 1.0 - incomplete_beta(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    value, c, d = 1.0, 1.0, 0.0
    for i in range(_TERMS):
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1.0 / (1.0 + term * d or _TINY)
        c = 1.0 + term / c or _TINY
        value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return math.exp(log_front) / a * (value - 1.0)


def t_cdf(t: float, df: float) -> float:
    """P(T <= t) with `df` > 0 degrees of freedom (need not be whole)."""
    tail = 0.5 * incomplete_beta(df / (df + t * t), df / 2, 0.5)
    return 1.0 - tail if t > 0 else tail


def t_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p, for 0.5 <= p < 1."""
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2
