"""The reference's process: a problem's own Python function computes the expected answers.

Its arrays on each device, and KernelBench's files, are handled here. Which answers are accepted is decided in
judge/correctness and judge/checks.
"""
