"""Lessons from all attempts: search over problems, errors that are equal, stores merged, candidates as commits.

It reads what other services recorded. Single attempts are written and read in services/records.
"""
