"""Online packing of GPU shares: pods arrive one by one, nothing moves, nothing is refused that fits.

`fleet` is the state (flat arrays, one column per node), `policy` the Protocol every rule follows, and each rule is a
module of its own: the five published baselines, FGD, and our `PatternFit`.
"""
