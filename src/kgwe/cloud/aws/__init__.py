"""AWS: instant EC2 fleets, which launch a gang whole or not at all, and existing Auto Scaling groups.

boto3 is imported when a provider is made.
"""
