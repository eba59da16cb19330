"""Student's t distribution without scipy. The distribution function uses the continued fraction of
the incomplete beta function (Lentz's method; DLMF 8.17.22), and the quantile uses Newton's method.
"""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_TERMS = 400


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Return I_x(a, b), the regularized incomplete beta function, for 0 <= x <= 1, to about
    1e-14."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only below its mean
        return 1.0 - incomplete_beta(1.0 - x, b, a)
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
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
    """Return P(T <= t) of Student's t distribution with `df` > 0 degrees of freedom, which need not
    be an integer."""
    return 0.5 + math.copysign(0.5 * incomplete_beta(t * t / (df + t * t), 0.5, df / 2), t)


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: float) -> float:
    """Return the value t with P(T <= t) = p of Student's t distribution with `df` degrees of
    freedom, for 0.5 <= p < 1."""
    log_front = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    t = 0.0  # the distribution is concave above 0: Newton's steps from below never pass the root
    for _ in range(_TERMS):
        density = math.exp(log_front - (df + 1) / 2 * math.log1p(t * t / df))
        step = (p - t_cdf(t, df)) / density
        t += step
        if step <= 1e-13 * t:
            break
    return t


def t_power(shift: float, df: float, alpha: float) -> float:
    """Return the chance, to about 1e-6, that a two-sided t test at level `alpha` shows a difference
    whose true size is `shift` standard errors.

    This is P(|T| > t(1 - alpha/2)) for T = (Z + shift) / sqrt(chi2(df) / df), the noncentral t
    distribution, integrated by Simpson's rule.
    """
    limit = t_quantile(1 - alpha / 2, df)
    end, steps = math.sqrt(1 + 9 / math.sqrt(2 * df)), 600
    log_front = math.log(2) + 0.5 * df * math.log(df / 2) - math.lgamma(df / 2)

    # u = v * v: close points where the spread is small, which is where T is large
    def integrand(v: float) -> float:
        if v == 0.0:
            return 0.0
        u = v * v
        density = math.exp(log_front + (df - 1) * math.log(u) - 0.5 * df * u * u) * 2 * v
        return density * (_normal_cdf(shift - limit * u) + _normal_cdf(-shift - limit * u))

    inner = math.fsum((4 if i % 2 else 2) * integrand(end * i / steps) for i in range(1, steps))
    return (integrand(0.0) + inner + integrand(end)) * end / steps / 3


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


@lru_cache(maxsize=256)
def detectable_shift_in_errors(df: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """Return the true difference, in standard errors, that a two-sided t test at level `alpha`
    shows in a share `power` of all experiments."""
    low, high = 0.0, 1.0
    while t_power(high, df, alpha) < power:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if t_power(middle, df, alpha) < power else (low, middle)
    return high
