"""Named sets of files that jobs run in, and files of the server's own machine.

Files as text pages, and trees of files as one blob, are here too. Files on a host are in hostd/files.
"""
