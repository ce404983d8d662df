"""What was tried and how it went: rows of attempts, the history of a problem, errors that are the same.

Services that do work note it here. What is learnt over all problems is in services/experience.
"""
