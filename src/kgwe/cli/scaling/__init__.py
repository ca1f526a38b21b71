"""`kgwe scale` and `kgwe drain`: what the autoscaler does, and what a drain would do."""
