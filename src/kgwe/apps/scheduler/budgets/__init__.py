"""Budgets in the scheduler: predicted costs are encumbered when a workload is admitted, before its money is spent."""
