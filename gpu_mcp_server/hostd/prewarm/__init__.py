"""Sandboxes and supervisors that are made before their job comes, so that it starts sooner.

A template says which jobs fit one, and the pool decides how many wait. How jobs run otherwise is in hostd/jobs.
"""
