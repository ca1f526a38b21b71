"""Health of a GPU: its state, the transitions between states, and the table of XIDs.

Pure; the agent, the scheduler and the translators import it.
"""
