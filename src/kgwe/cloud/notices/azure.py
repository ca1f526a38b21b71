"""Azure: scheduled events of the instance metadata service. Preemption of a spot VM is announced 30 seconds before."""

from __future__ import annotations

import email.utils
from typing import Any, Final

import msgspec

from kgwe import errors
from kgwe.cloud.notices.source import MetadataClient, Notice, read_field
from kgwe.cloud.provider import NoticeKind

URL: Final = "http://169.254.169.254"
PREEMPTION_S: Final = 30.0
_HEADERS: Final = {"Metadata": "true"}
_EVENTS_PATH: Final = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME_PATH: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_KINDS: Final = {
    "Preempt": (NoticeKind.TERMINATION, "SpotInterruption"),
    "Terminate": (NoticeKind.TERMINATION, "ScheduledTermination"),
    "Redeploy": (NoticeKind.MAINTENANCE, "HostMaintenance"),
    "Reboot": (NoticeKind.MAINTENANCE, "HostMaintenance"),
}


class AzureNotices:
    """Notices of an Azure VM. Events of other VMs of the same scale set are left out."""

    def __init__(self, url: str = URL) -> None:
        self._client = MetadataClient(url)
        self._name = ""
        self._first_seen: dict[str, float] = {}

    async def read(self, now: float) -> tuple[Notice, ...]:
        if not self._name:
            self._name = (await self._client.request("GET", _NAME_PATH, _HEADERS) or "").strip()
            if not self._name:
                raise errors.Transient("the metadata service does not say the name of this VM")
        text = await self._client.request("GET", _EVENTS_PATH, _HEADERS)
        try:
            answer = msgspec.json.decode(text or "{}")
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
            raise errors.Transient(f"the metadata service answers with no JSON: {exc}") from exc
        events = answer.get("Events") if isinstance(answer, dict) else None
        found = [self._read_event(each, now) for each in events] if isinstance(events, list) else []
        return tuple(each for each in found if each is not None)

    def _read_event(self, event: Any, now: float) -> Notice | None:
        kind = _KINDS.get(read_field(event, "EventType"))
        names = event.get("Resources") if isinstance(event, dict) else None
        if kind is None or not isinstance(names, list) or self._name not in names:
            return None
        event_id = read_field(event, "EventId")
        at = _parse_time(read_field(event, "NotBefore"))
        if at is None:  # it has begun
            at = self._first_seen.setdefault(event_id, now) + PREEMPTION_S
        return Notice(
            notice_id=event_id,
            kind=kind[0],
            reason=kind[1],
            message=f"Azure announces {read_field(event, 'EventType')} for this VM",
            deadline_at=at,
        )


def _parse_time(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() if text else None
    except ValueError:
        return None
