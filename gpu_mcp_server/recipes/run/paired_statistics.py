"""Differences of pairs with their intervals."""

import math
import statistics
from collections.abc import Sequence

from gpu_mcp_server.models.suite import PairedDifference, Proportion

T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Quantile 0.975 of Student's t with 1 to 30 degrees of freedom.

Source: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, critical values of the Student's t distribution.
"""


T99 = (
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947, 2.921,
    2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
)  # fmt: skip
"""Quantile 0.995 of the same, by the same source."""
T995 = (
    127.321, 14.089, 7.453, 5.598, 4.773, 4.317, 4.029, 3.833, 3.690, 3.581, 3.497, 3.428, 3.372, 3.326, 3.286, 3.252,
    3.222, 3.197, 3.174, 3.153, 3.135, 3.119, 3.104, 3.091, 3.078, 3.067, 3.057, 3.047, 3.038, 3.030,
)  # fmt: skip
"""Quantile 0.9975 of the same: two intervals that hold together in 99 of 100 cases (Bonferroni)."""


def mean_of_differences(differences: Sequence[float], quantiles: Sequence[float] = T95) -> PairedDifference:
    """Return the mean of independent differences with Student's interval; without ends for fewer than two.

    Beyond 31 differences the quantile of 30 degrees of freedom is used, which is a little too wide.

    Args:
        differences: Each of one pair.
        quantiles: T95, T99 or T995.
    """
    if not differences:
        return PairedDifference(of=0)
    mean = statistics.fmean(differences)
    if len(differences) == 1:
        return PairedDifference(of=1, mean=mean)
    t = quantiles[min(len(differences) - 1, len(quantiles)) - 1]
    half = t * statistics.stdev(differences) / math.sqrt(len(differences))
    return PairedDifference(of=len(differences), mean=mean, low=mean - half, high=mean + half)


def difference_of_shares(first: Sequence[bool], second: Sequence[bool]) -> PairedDifference:
    """Return by how much the share of hits is higher in the second of paired samples.

    Source:
        R. G. Newcombe, Improved confidence intervals for the difference between binomial proportions based on paired
        data, Statistics in Medicine 17 (1998), method 10.
    """
    n = len(first)
    if n == 0:
        return PairedDifference(of=0)
    both = sum(a and b for a, b in zip(first, second, strict=True))
    alone_second, alone_first = sum(second) - both, sum(first) - both
    neither = n - both - alone_first - alone_second
    p1, p2 = Proportion.from_counts(sum(second), n), Proportion.from_counts(sum(first), n)
    up1, down1 = p1.high - p1.hits / n, p1.hits / n - p1.low
    up2, down2 = p2.high - p2.hits / n, p2.hits / n - p2.low
    margins = p1.hits * (n - p1.hits) * p2.hits * (n - p2.hits)
    product = both * neither - alone_first * alone_second
    product = max(product - n / 2, 0) if product > 0 else product
    phi = product / math.sqrt(margins) if margins else 0.0
    mean = (alone_second - alone_first) / n
    low = mean - math.sqrt(max(down1**2 - 2 * phi * down1 * up2 + up2**2, 0.0))
    high = mean + math.sqrt(max(up1**2 - 2 * phi * up1 * down2 + down2**2, 0.0))
    return PairedDifference(of=n, mean=mean, low=low, high=high)
