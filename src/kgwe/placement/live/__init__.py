"""The fleet as it is now: the ledger of reservations and holdings, and scratch copies to plan on.

Built on `placement.planning` and below; `cluster`, the queue and the apps import it.
"""
