"""Runs and suites as single HTML pages that need nothing beside them.

Rooflines of a run are computed here too. Pages of the running server are in web/dashboard, and pictures are in plots.
"""
