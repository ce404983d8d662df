"""Context of every call: its user, the budget of its answer, and the place of logs and traces.

Store, services and the web application all use it. Rules about users belong in team, and settings in settings.
"""
