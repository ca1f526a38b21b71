"""Devices of pods: the device plugins, what pods hold, and how the two are added to the agent."""
