"""Azure: virtual machine scale sets. Gangs are best effort: a part that could not be completed is returned.

azure-mgmt-compute is imported when a provider is made.
"""
