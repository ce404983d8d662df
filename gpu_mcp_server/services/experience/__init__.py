"""What all attempts teach: search over problems, errors that are equal, stores merged into one, candidates as commits.

It reads what other services recorded. Single attempts are written and read in services/records.
"""
