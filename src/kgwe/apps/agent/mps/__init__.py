"""MPS: carries out orders over gRPC with the daemons of `kgwe.hardware.mps`."""
