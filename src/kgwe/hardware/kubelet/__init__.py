"""The kubelet's unix sockets: what pods hold, and the devices it may give them."""
