"""Programs of ours that run in a job's sandbox: standard library alone, Python 3.8 syntax, imported by nobody.

Each has a `main` that gets the job's arguments; only their source travels.
"""
