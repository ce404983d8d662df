"""Finds the judge's files, which its processes can only read, and the workspace of this process's role.

This stays at the top of the package: the hash in the evidence is that of the folder in which this module lies.
"""

import os

JUDGE = os.path.dirname(os.path.abspath(__file__))
WORK = os.getcwd()
"""A process begins in its workspace. `main` imports this early: somebody else's code may go elsewhere."""
CODE = os.path.join(JUDGE, "compiled")
"""Code that was compiled for this host.

Not beside the sources: a library would be imported for a module of its name.
"""
