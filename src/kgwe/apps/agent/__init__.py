"""The process on every GPU node: what is there, how it is, and cutting and sharing it."""
