"""Answers to questions: exact names, full text, ranking, editions and citations.

The open index and the lookup of error messages are here too. Search by meaning is in knowledge/vectors, and readers
of files are in knowledge/readers.
"""
