"""Plans for asks: one pod or a gang, with the reasons and the diagnosis of a refusal.

Built on `placement.disruption` and below; the queue, the live fleet and the apps import it.
"""
