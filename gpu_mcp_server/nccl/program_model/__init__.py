"""A program as data: syntax, functions, macros, launches, memory, and the order in which it runs.

Names of NCCL's functions and edits of the text are here too. What follows for communication is in nccl/analysis.
"""
