"""Input and output of compilers: flags, build plans, diagnostics, listings, object files.

Each function takes text or data, and returns it. Nothing here starts a program; services/builds does, and hostd/probe
finds what a host has.
"""
