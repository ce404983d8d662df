"""Memory of the server: a SQLite database, and files under the hash of their bytes.

Schema, locks, backups, pruning and ownership of rows belong here too. What rows mean is known to services, and hosts
keep their own files in hostd.
"""
