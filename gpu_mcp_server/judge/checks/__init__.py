"""Tests against cheating: interrupted rounds, changed inputs, other distributions, precision, memory, ghost replay.

Each module makes one kind of cheat visible, and says how certain it is. Ordinary rounds are in judge/timing.
"""
