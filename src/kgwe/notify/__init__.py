"""Notifications: webhook, Slack format, e-mail and Alertmanager. A slow or dead channel delays nothing else.

Apps import it.
"""
