"""Commands that users run in workspaces: started, followed, and told with what they left behind.

Ranks on several hosts, test reports, core dumps and work that outlives a call are handled here. The job beneath a
command is in services/jobs.
"""
