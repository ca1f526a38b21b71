"""FOCUS: charges as rows of the FinOps Foundation's open format for cost and usage."""
