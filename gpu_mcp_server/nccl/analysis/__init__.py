"""What a program communicates: its graph, its patterns, who writes and reads each buffer, and what can be changed.

It returns data, text and pictures for agents. The changes themselves are in nccl/stages.
"""
