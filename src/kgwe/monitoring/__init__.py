"""Monitoring as code: dashboards, Prometheus rules and runbooks. `python -m kgwe.monitoring` writes their files."""
