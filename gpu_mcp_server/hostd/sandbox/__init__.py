"""Confines one process tree: namespaces, Landlock, system call filter, mounts, control groups, keeper.

Facts about processes and descriptors that this needs are here too. Which processes a job has, and how long they may
run, is decided in hostd/jobs.
"""
