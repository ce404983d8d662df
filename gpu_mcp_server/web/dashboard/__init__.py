"""The pages for people: hosts, jobs, problems, attempts and headless runs.

They read through services, with the rights of their visitor, and their templates and scripts lie beside them.
Pictures are in plots, and reports as single files are in recipes/reports.
"""
