"""One real node of a local cluster: kubelet, containerd, kube-proxy, CoreDNS and the agent, in namespaces of its own.

    runner.py      on the host: makes the namespaces and the link to them, relays to the API server
    supervisor.py  first process inside: mounts, then starts and restarts the node's processes
    node.py        up, down and status

Only `kgwe local node` and tests use it.
"""
