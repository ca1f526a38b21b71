"""GCP: bulk inserts, and resize requests of managed instance groups. Both launch a gang whole or not at all.

google-cloud-compute is imported when a provider is made.
"""
