"""Manifests of the objects that run a workload: pod template, Job or Deployment, Service and ResourceClaims.

Built on `cluster.workload.workload` and its codecs; used by `cluster` and the apps.
"""
