"""Documentation of what is installed: read into entries, indexed, searched and measured.

It works on files of this machine, and has a room for each of those steps. When an index is made and what agents are
told is decided in services/documentation.
"""
