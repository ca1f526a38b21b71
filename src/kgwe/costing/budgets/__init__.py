"""Budgets: periods, encumbrances, admission, alerts and projections. Pure decisions that any app may import."""
