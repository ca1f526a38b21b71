"""The dashboards, one module each, and the list of all."""
