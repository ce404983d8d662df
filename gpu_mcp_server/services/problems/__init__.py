"""Problems: references, tensors, constraints, formulas and launchers, checked and stored by hash.

Nothing here runs a reference. Registration, which runs it once, is in services/evaluation, and file formats are in
services/problems/formats.
"""
