"""The host side: it runs jobs in sandboxes, and speaks frames over stdio.

Standard library and Python 3.8 syntax only, as it is copied to other machines as it stands. It imports nothing else
of this project; protocol is what both sides share.
"""
