"""Candidates under judgement: the judge's job, files and results, batches, audits, baselines, registration.

What happens on the server before and after the judge runs belongs here. The judge itself is in judge, and compilers
are in services/builds.
"""
