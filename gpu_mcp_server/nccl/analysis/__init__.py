"""Analysis of a program's communication: graph, patterns, writers and readers of each buffer, possible changes.

It returns data, text and pictures for agents. The changes themselves are in nccl/stages.
"""
