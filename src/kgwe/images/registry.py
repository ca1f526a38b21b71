"""Pushes an OCI layout to a registry by the OCI distribution protocol, without blobs that the registry has already."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import httpx2

from kgwe import errors
from kgwe.images import layout

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT_S: Final = 120.0
_CREATED, _ACCEPTED, _OK, _UNAUTHORIZED, _MISSING = 201, 202, 200, 401, 404
_CHALLENGE: Final = re.compile(r'(realm|service|scope)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Reference:
    """An image name: registry, repository and tag."""

    registry: str
    repository: str
    tag: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        registry, _, rest = text.partition("/")
        repository, _, tag = rest.partition(":")
        if not rest or not repository or not tag or not ("." in registry or ":" in registry or registry == "localhost"):
            raise errors.Permanent(
                f"{text!r} is not a full image name. Write REGISTRY/REPOSITORY:TAG, such as registry.example.com/kgwe:1"
            )
        return cls(registry, repository, tag)

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}:{self.tag}"


@dataclass(frozen=True, slots=True)
class Pushed:
    reference: Reference
    digest: str
    sent: int
    """Blobs that the registry did not have."""
    skipped: int


class Registry:
    """One repository of a registry. Basic credentials, and tokens that the registry's own service issues for them."""

    def __init__(self, reference: Reference, *, user: str = "", password: str = "", plain_http: bool = False) -> None:
        self._reference = reference
        self._basic = (user, password) if user else None
        self._headers: dict[str, str] = {}
        scheme = "http" if plain_http else "https"
        self._base = f"{scheme}://{reference.registry}/v2/{reference.repository}"
        self._client = httpx2.Client(timeout=_TIMEOUT_S, follow_redirects=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def push(self, image: layout.Layout) -> Pushed:
        """Push all platforms of an image; the tag is written last, so it never names an incomplete image."""
        entry = image.find_image()
        index = image.read_document(entry["digest"])
        sent = skipped = 0
        for platform in index["manifests"]:
            manifest = image.read_document(platform["digest"])
            for blob in (manifest["config"], *manifest["layers"]):
                if self._has_blob(blob["digest"]):
                    skipped += 1
                else:
                    self._send_blob(blob["digest"], image.read_blob(blob["digest"]))
                    sent += 1
            self._put_manifest(platform["digest"], layout.MANIFEST, image.read_blob(platform["digest"]))
        self._put_manifest(self._reference.tag, layout.INDEX, image.read_blob(entry["digest"]))
        return Pushed(self._reference, entry["digest"], sent, skipped)

    def _has_blob(self, digest: str) -> bool:
        answer = self._call("HEAD", f"{self._base}/blobs/{digest}")
        if answer.status_code not in {_OK, _MISSING}:
            raise self._refused("look for a layer", answer)
        return answer.status_code == _OK

    def _send_blob(self, digest: str, data: bytes) -> None:
        started = self._call("POST", f"{self._base}/blobs/uploads/")
        if started.status_code != _ACCEPTED or "location" not in started.headers:
            raise self._refused("start an upload", started)
        location = str(started.url.join(started.headers["location"]))
        joined = f"{location}{'&' if '?' in location else '?'}digest={digest}"
        done = self._call("PUT", joined, data, "application/octet-stream")
        if done.status_code != _CREATED:
            raise self._refused("store a layer", done)

    def _put_manifest(self, name: str, media_type: str, data: bytes) -> None:
        done = self._call("PUT", f"{self._base}/manifests/{name}", data, media_type)
        if done.status_code != _CREATED:
            raise self._refused(f"store the manifest {name}", done)

    def _call(self, method: str, url: str, data: bytes | None = None, media_type: str = "") -> httpx2.Response:
        answer = self._send(method, url, data, media_type)
        if answer.status_code == _UNAUTHORIZED and self._log_in(answer.headers.get("www-authenticate", "")):
            answer = self._send(method, url, data, media_type)
        return answer

    def _send(self, method: str, url: str, data: bytes | None, media_type: str) -> httpx2.Response:
        headers = {**self._headers, **({"content-type": media_type} if media_type else {})}
        try:
            return self._client.request(method, url, content=data, headers=headers)
        except httpx2.HTTPError as exc:
            raise errors.Unreachable(f"registry {self._reference.registry}: {exc}") from exc

    def _log_in(self, challenge: str) -> bool:
        """Answer the registry's challenge; returns whether there is anything new to answer with."""
        if challenge.lower().startswith("bearer"):
            found = dict(_CHALLENGE.findall(challenge))
            token = self._fetch_token(found) if "realm" in found else ""
            header = f"Bearer {token}" if token else ""
        elif self._basic is not None:
            header = _basic_header(*self._basic)
        else:
            header = ""
        if not header or self._headers.get("authorization") == header:
            return False
        self._headers["authorization"] = header
        return True

    def _fetch_token(self, challenge: dict[str, str]) -> str:
        parameters: dict[str, str] = {name: challenge[name] for name in ("service", "scope") if name in challenge}
        headers = {"authorization": _basic_header(*self._basic)} if self._basic else {}
        try:
            answer = self._client.get(challenge["realm"], params=parameters, headers=headers)
            tree = answer.json() if answer.status_code == _OK else {}
        except (httpx2.HTTPError, ValueError) as exc:
            raise errors.Unreachable(f"registry {self._reference.registry}: no token: {exc}") from exc
        return str(tree.get("token") or tree.get("access_token") or "") if isinstance(tree, dict) else ""

    def _refused(self, action: str, answer: httpx2.Response) -> errors.KgweError:
        said = "; ".join(_read_errors(answer))
        status = f"HTTP {answer.status_code}" + (f": {said}" if said else "")
        message = f"registry {self._reference.registry} refused to {action}: {status}"
        if answer.status_code == _UNAUTHORIZED:
            return errors.Permanent(f"{message}. Set KGWE_REGISTRY_USER and KGWE_REGISTRY_PASSWORD")
        return errors.Permanent(message)


def _basic_header(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _read_errors(answer: httpx2.Response) -> Iterator[str]:
    try:
        tree: Any = json.loads(answer.content)
    except ValueError:
        return
    for each in tree.get("errors", ()) if isinstance(tree, dict) else ():
        if isinstance(each, dict):
            yield str(each.get("message") or each.get("code"))
