"""Plans that move or stop running pods: preemption, recovery, relocation and defragmentation.

Built on `placement.gang` and below; planning, the queue and the apps import it.
"""
