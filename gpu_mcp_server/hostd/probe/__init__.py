"""Probes a host: processors, compilers, libraries, Python interpreters, and changes by its setup lines.

Answers of compilers are cached here. What its GPUs say is read in hostd/gpus.
"""
