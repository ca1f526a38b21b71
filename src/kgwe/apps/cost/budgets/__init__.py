"""Budgets in the cost engine: what was spent and will be spent is published in GPUBudgets, and alerts are sent."""
