"""How cards are cut and shared: MIG layouts, slots and re-cuts."""
