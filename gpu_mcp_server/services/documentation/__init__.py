"""Documentation as tools ask for it: the index is opened, made and renewed here.

Headers of other hosts are fetched here as well. Reading, indexing and search are in knowledge.
"""
