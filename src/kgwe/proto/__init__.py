"""Protocols: .proto files and the code made from them by `make proto`."""
