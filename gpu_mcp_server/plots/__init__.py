"""Pictures as files: the history of a problem, rooflines, and where an answer is wrong.

Each module takes data and returns SVG or PNG. Numbers behind a picture are computed elsewhere, and pages that show
pictures belong in web or recipes/reports.
"""
