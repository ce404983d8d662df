"""Frozen data that passes between rooms: jobs, problems, verdicts, profiles.

A model checks its fields, and can put itself into words. Nothing here reads a file, asks a host or changes the store.
"""
