"""What a host has: processors, compilers, libraries, Python interpreters, and what its setup lines change.

Answers of compilers are cached here. What its GPUs say is read in hostd/gpus.
"""
