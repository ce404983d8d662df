"""Profilers and memory checkers at work: what is profiled, by which plan, and stored profiles to ask.

Their jobs run one tool around one target. What the tools print is understood in profilers.
"""
