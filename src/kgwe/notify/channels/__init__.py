"""Channels: each sends one notification in one format. `kgwe.notify.notifier` retries."""
