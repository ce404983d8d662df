"""Tensors as numbers: their place in a buffer, types, random values, comparison by element, statistics.

Everything here is arithmetic on arrays, without processes, devices or clocks. What counts as right beyond a tolerance
is in judge/correctness.
"""
