"""Problems as public suites publish them, seen as KernelBench's `Model`, `get_inputs`, `get_init_inputs`, case by case.

They run in the reference's process and, for what a Python candidate is constructed with, in the candidate's own.
"""
