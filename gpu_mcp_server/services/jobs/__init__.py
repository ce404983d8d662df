"""The one path of every job: its row, its host, its GPUs, its wait and its record.

Batch jobs, output as text and tasks of MCP belong here too. What users run as commands is in services/commands, and
hosts run jobs by hostd.
"""
