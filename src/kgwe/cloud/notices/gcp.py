"""GCP: preemption of spot VMs and host maintenance from the metadata server.

Neither names a time. A preempted VM has 30 seconds from the moment it shows; VMs with GPUs are told an hour before
host maintenance terminates them.
"""

from __future__ import annotations

from typing import Final

from kgwe.cloud.notices.source import MetadataClient, Notice
from kgwe.cloud.provider import NoticeKind

URL: Final = "http://metadata.google.internal"
PREEMPTION_S: Final = 30.0
MAINTENANCE_S: Final = 3600.0
_FLAVOR: Final = {"Metadata-Flavor": "Google"}
_PREEMPTED_PATH: Final = "/computeMetadata/v1/instance/preempted"
_MAINTENANCE_PATH: Final = "/computeMetadata/v1/instance/maintenance-event"


class GcpNotices:
    """Notices of a Compute Engine VM."""

    def __init__(self, url: str = URL) -> None:
        self._client = MetadataClient(url)
        self._first_seen: dict[str, float] = {}

    async def read(self, now: float) -> tuple[Notice, ...]:
        preempted = await self._client.request("GET", _PREEMPTED_PATH, _FLAVOR)
        event = await self._client.request("GET", _MAINTENANCE_PATH, _FLAVOR)
        found = []
        if (preempted or "").strip() == "TRUE":
            at = self._first_seen.setdefault("preempted", now) + PREEMPTION_S
            found.append(
                Notice(
                    notice_id="preempted",
                    kind=NoticeKind.TERMINATION,
                    reason="SpotInterruption",
                    message="GCP preempts this VM",
                    deadline_at=at,
                )
            )
        if (event or "").strip() == "TERMINATE_ON_HOST_MAINTENANCE":
            at = self._first_seen.setdefault("maintenance", now) + MAINTENANCE_S
            found.append(
                Notice(
                    notice_id="maintenance",
                    kind=NoticeKind.MAINTENANCE,
                    reason="HostMaintenance",
                    message="GCP stops this VM for host maintenance",
                    deadline_at=at,
                )
            )
        else:
            self._first_seen.pop("maintenance", None)
        return tuple(found)
