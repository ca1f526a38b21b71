"""Right-sizing on a cluster: what is known of each key, decisions, and the objects they are stored in."""
