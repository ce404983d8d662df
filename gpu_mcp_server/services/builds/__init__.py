"""Compilers at work: sources, plans, caches, whole projects, disassembly and ports.

Results and failures are kept by content. Flags and messages of compilers are understood in toolchains.
"""
