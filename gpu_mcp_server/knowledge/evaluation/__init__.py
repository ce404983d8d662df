"""Evaluation of the search: questions with accepted entries, recall, rank and latency.

It measures the index in use. The questions themselves are in knowledge_base, and the search is in knowledge/search.
"""
