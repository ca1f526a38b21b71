"""The local cluster: a real Kubernetes control plane on this machine, with a simulated GPU fleet.

The benchmarks, the command line and the tests import it; production code never does.
"""
