"""Sends alerts of budgets: to the channels that a budget names, else as the routes of the settings say.

A budget is written by cluster operators, so it may name a URL; the URL itself is in a Secret of the engine's namespace.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final, Literal, Self

import structlog

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpubudget import ChannelType
from kgwe.kube.client.events import Event
from kgwe.notify.notification import Notification, Severity, Subject
from kgwe.notify.notifier import Notifier
from kgwe.notify.secrets import SecretKey, SecretReference, Secrets
from kgwe.notify.settings import AlertmanagerSettings, NotifySettings, SlackSettings, WebhookSettings

if TYPE_CHECKING:
    from types import TracebackType

    from kgwe.apps.cost.budgets.status import Alert
    from kgwe.kube.api.kgwe.gpubudget import BudgetChannel, GPUBudget
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.events import EventRecorder
    from kgwe.notify.metrics import NotifyMetrics

log = structlog.get_logger(__name__)

_GRACE_S: Final = 2.0
_MOST_CHANNELS: Final = 64


class AlertSender:
    """Sends alerts without waiting for any channel. Use it as a context manager."""

    def __init__(
        self,
        settings: NotifySettings,
        client: KubeClient,
        events: EventRecorder,
        namespace: str,
        metrics: NotifyMetrics | None = None,
    ) -> None:
        self._settings = settings
        self._client = client
        self._events = events
        self._namespace = namespace
        self._secrets = Secrets(self._read_secret)
        self._routed = Notifier(settings, self._secrets, metrics)
        self._named: dict[BudgetChannel, Notifier] = {}

    async def __aenter__(self) -> Self:
        await self._routed.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._routed.close(_GRACE_S)
        for notifier in self._named.values():
            await notifier.close(_GRACE_S)
        self._named.clear()

    def send(self, budget: GPUBudget, alert: Alert, at_s: float) -> None:
        """Queue an alert for its channels, and record an Event on the budget."""
        meta = budget.metadata
        note = f"{alert.title}. {alert.text}"
        is_info = alert.severity == Severity.INFO
        kind: Literal["Normal", "Warning"] = "Normal" if is_info else "Warning"
        self._events.record(Event(resources.GPU_BUDGET, meta, kind, alert.kind, note, "Counting"))
        notification = Notification(
            kind=alert.kind,
            severity=Severity(alert.severity),
            title=alert.title,
            text=alert.text,
            subject=Subject("GPUBudget", meta.name, meta.namespace),
            key=alert.key,
            at_s=at_s,
        )
        log.info("budget_alert", budget=meta.key, alert=alert.kind, title=alert.title)
        if not budget.spec.channels:
            self._routed.notify(notification)
        for channel in budget.spec.channels:
            try:
                self._open(channel).notify(notification)
            except (ValueError, errors.KgweError) as exc:
                log.warning("budget_channel_not_used", budget=meta.key, error=str(exc))

    def _open(self, channel: BudgetChannel) -> Notifier:
        """Return the notifier of a channel; it is started once and kept."""
        found = self._named.get(channel)
        if found is None:
            if len(self._named) >= _MOST_CHANNELS:
                raise errors.Permanent(f"budgets name more than {_MOST_CHANNELS} channels")
            # Its own metrics: channels of two notifiers may have the same name.
            found = Notifier(self._find_settings(channel), self._secrets)
            found.start()
            self._named[channel] = found
        return found

    def _find_settings(self, channel: BudgetChannel) -> NotifySettings:
        if channel.name:
            named = tuple(each for each in self._settings.channels if each.name == channel.name)
            if not named:
                raise errors.Permanent(f"the settings of the cost engine have no channel {channel.name}")
            return NotifySettings(channels=named)
        if channel.urlFrom is None:
            raise errors.Permanent("a channel needs a name, or a type and urlFrom")
        key = SecretKey(name=channel.urlFrom.name, key=channel.urlFrom.key, namespace=self._namespace)
        name, url = f"{key.name}/{key.key}", SecretReference(secret=key)
        if channel.type == ChannelType.SLACK:
            return NotifySettings(channels=(SlackSettings(name=name, url_from=url),))
        if channel.type == ChannelType.ALERTMANAGER:
            return NotifySettings(channels=(AlertmanagerSettings(name=name, url_from=url),))
        return NotifySettings(channels=(WebhookSettings(name=name, url_from=url),))

    async def _read_secret(self, key: SecretKey) -> str | None:
        """Read a key of a Secret in the engine's own namespace; it may read no others."""
        if key.namespace not in {"", self._namespace}:
            raise errors.Permanent(f"Secrets are read in namespace {self._namespace} only")
        try:
            secret = await self._client.get(resources.SECRET, key.name, self._namespace)
        except errors.NotFound:
            return None
        return base64.b64decode(secret.data.get(key.key, "")).decode(errors="replace")
