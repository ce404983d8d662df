"""Programs of ours that run by themselves, most of them inside a job's sandbox.

Each is one file with the standard library alone, in Python 3.8 syntax, and only its source travels. What starts them
is in services; the judge's processes are in judge.
"""
