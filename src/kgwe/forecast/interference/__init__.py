"""How fast two jobs run when they share a GPU, from what each did alone. Pure."""
