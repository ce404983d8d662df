"""The host side: runs jobs in sandboxes and speaks frames over stdio.

Standard library only and written for Python 3.8, because it is pushed to other machines as it stands.
It imports nothing else of this project. `protocol` is what both sides share; the rest runs on the host.
"""
