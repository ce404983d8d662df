"""From a file to entries: headers, docstrings, manual pages, Markdown, HTML and PDF.

Each reader knows one format; sources say where documentation comes from. How entries are stored is in
knowledge/index.
"""
