"""Files on the host: contents by hash, workspaces, shared read-only trees, and their removal.

A job may plant anything in its folders, so nothing here follows a link out of them. The records of jobs are in
hostd/jobs.
"""
