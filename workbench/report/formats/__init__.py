"""Output formats of reports: one module each, with `render(report)`; report/registry.py lists them."""
