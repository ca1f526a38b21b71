"""GPUBudgets as both the cost engine and the scheduler read them: the limit, whose spend counts, and what is wrong."""
