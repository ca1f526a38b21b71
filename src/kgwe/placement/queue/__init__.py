"""The queue of waiting workloads: order, fair shares, reservations, backfill and estimated starts.

The top of `placement` but for `analysis`; the scheduler and the simulator import it.
"""
