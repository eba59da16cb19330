"""Output formats of reports. Each is a module with a function `render(report)`. The list of formats
is in report/registry.py.
"""
