"""Scale-up: the cheapest nodes to buy for pods and gangs that found no place. Gangs are bought whole, or not at all."""
