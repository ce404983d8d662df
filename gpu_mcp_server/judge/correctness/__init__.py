"""Decides on answers beyond a plain tolerance: double precision, rounding, ties, repeated answers.

Each module says what may differ, and why. Plain comparison is in judge/numerics, and deliberate tests for cheating
are in judge/checks.
"""
