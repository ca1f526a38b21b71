"""What GPUs cost: the price book, the split of a node's price, metering into segments, and reports. Pure decisions.

Money is counted in integers (see `money.py`). Time and prices are arguments.
"""
