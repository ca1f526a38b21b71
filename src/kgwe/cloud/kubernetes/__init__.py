"""Nodes that another controller of the cluster buys: Karpenter, by NodeClaims."""
