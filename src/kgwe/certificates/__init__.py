"""Certificates of KGWE's own servers: a small authority, and when each certificate is replaced."""
