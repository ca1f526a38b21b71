"""HTTP transport to the API server, and the JSON and protobuf codecs. Imports `kube.api`; used by `kube.client`."""
