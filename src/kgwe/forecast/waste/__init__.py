"""The waste detector: which pods leave their GPUs unused, what to do about it, and whether it helped.

    rules            settings of all judgements
    states           state of every device in a window of usage, as arrays
    verdicts         state of every pod, from the states of its devices and of its gang
    findings         pods to report: idle, underused, and imbalances
    score            0 to 100: how much of the held GPUs is unused
    alternatives     smaller things that a pod could use instead
    recommend        one recommendation per pod, with money and confidence
    idle_policy      acting on idle GPUs: notify, wait, suspend
    verify           the saving after advice was followed

Missing data is unknown. Unknown produces no finding, no recommendation and no action.
"""
