"""Right-sizing: smaller GPU requests from history, and their automatic revert."""
