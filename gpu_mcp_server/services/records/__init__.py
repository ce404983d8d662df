"""Records of attempts and their outcomes: rows of attempts, and the history of a problem.

Services that do work note it here. What is learnt over all problems is in services/experience.
"""
