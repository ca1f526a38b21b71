"""AWS: rebalance recommendations and spot interruption notices from the instance metadata service, version 2."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.cloud.notices.source import MetadataClient, Notice, Unauthorized, read_field
from kgwe.cloud.provider import NoticeKind

if TYPE_CHECKING:
    from typing import Any

URL: Final = "http://169.254.169.254"
#: AWS takes a spot instance away this long after the notice.
WARNING_S: Final = 120.0
_TOKEN_PATH: Final = "/latest/api/token"  # noqa: S105 - a path
_ACTION_PATH: Final = "/latest/meta-data/spot/instance-action"
_REBALANCE_PATH: Final = "/latest/meta-data/events/recommendations/rebalance"
_TOKEN_S: Final = 21_600
_ACTIONS: Final = frozenset({"terminate", "stop", "hibernate"})


class AwsNotices:
    """Notices of an EC2 instance."""

    def __init__(self, url: str = URL) -> None:
        self._client = MetadataClient(url)
        self._token = ""

    async def read(self, now: float) -> tuple[Notice, ...]:
        found = (
            self._read_action(await self._get(_ACTION_PATH), now),
            _read_rebalance(await self._get(_REBALANCE_PATH)),
        )
        return tuple(each for each in found if each is not None)

    @staticmethod
    def _read_action(text: str | None, now: float) -> Notice | None:
        answer = _decode(text)
        action = read_field(answer, "action")
        if action not in _ACTIONS:
            return None
        at = _parse_time(read_field(answer, "time"))
        return Notice(
            notice_id=f"{action}-{read_field(answer, 'time')}",
            kind=NoticeKind.TERMINATION,
            reason="SpotInterruption",
            message=f"AWS will {action} this spot instance",
            deadline_at=now + WARNING_S if at is None else at,
        )

    async def _get(self, path: str) -> str | None:
        if not self._token:
            await self._renew()
        try:
            return await self._client.request("GET", path, {"X-aws-ec2-metadata-token": self._token})
        except Unauthorized:
            await self._renew()
            return await self._client.request("GET", path, {"X-aws-ec2-metadata-token": self._token})

    async def _renew(self) -> None:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
        token = await self._client.request("PUT", _TOKEN_PATH, headers)
        if not token:
            raise errors.Transient("the metadata service gives no session token")
        self._token = token


def _read_rebalance(text: str | None) -> Notice | None:
    time = read_field(_decode(text), "noticeTime")
    if not time:
        return None
    return Notice(
        notice_id=f"rebalance-{time}",
        kind=NoticeKind.REBALANCE,
        reason="RebalanceRecommended",
        message="AWS sees an elevated risk of interruption for this spot instance",
    )


def _decode(text: str | None) -> Any:
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
        raise errors.Transient(f"the metadata service answers with no JSON: {exc}") from exc


def _parse_time(text: str) -> float | None:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp()
