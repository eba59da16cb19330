"""Student's t distribution without scipy: the regularized incomplete beta function by its continued fraction
(Lentz's method; DLMF 8.17.22), and the quantile by Newton."""

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
    return 0.5 + math.copysign(0.5 * incomplete_beta(t * t / (df + t * t), 0.5, df / 2), t)


def t_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p, for 0.5 <= p < 1."""
    log_front = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    t = 0.0  # the distribution is concave above 0: Newton's steps from below never pass the root
    for _ in range(_TERMS):
        density = math.exp(log_front - (df + 1) / 2 * math.log1p(t * t / df))
        step = (p - t_cdf(t, df)) / density
        t += step
        if step <= 1e-13 * t:
            break
    return t
