"""The index of entries: its schema, how it is built aside and put in place, and how names are taken apart.

An index is never changed once it is in use. Questions are answered in knowledge/search.
"""
