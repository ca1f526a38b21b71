"""The administrator's requests of the local cluster itself: health, one role, tokens.

The client is synchronous and small: it must work before other parts run, and must not depend on the client it helps
to test.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Self

import httpx2
import msgspec

from kgwe.errors import NotFound, Permanent, Transient
from kgwe.local.cluster import certificates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from kgwe.local.cluster.certificates import Certificates

_TIMEOUT_S = 60.0  # as long as the API server itself works on a request: a busy machine is slow
_NOT_FOUND, _TOO_MANY, _SERVER_ERROR = 404, 429, 500

_KWOK_ROLE = "kgwe:kwok"
_KWOK_RULES = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["nodes/status", "pods/status"], "verbs": ["patch", "update"]},
    {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
)


class Api:
    """The API server (and the health endpoints of other components) with the administrator's credentials."""

    def __init__(self, url: str, files: Certificates) -> None:
        context = ssl.create_default_context(cafile=str(files.authority))
        admin = files.pair(certificates.ADMIN)
        context.load_cert_chain(admin.certificate, admin.key)
        # trust_env is off: a proxy for outside traffic must not see loopback traffic.
        self._client = httpx2.Client(base_url=url, verify=context, timeout=_TIMEOUT_S, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def is_healthy(self, url: str) -> bool:
        try:
            return self._client.get(url, timeout=2.0).is_success
        except httpx2.TransportError:
            return False

    def exists(self, path: str) -> bool:
        try:
            self.request("GET", path)
        except NotFound:
            return False
        return True

    def text(self, path: str) -> str:
        return self._send("GET", path, None).text

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = self._send(method, path, body).json()
        return answer

    def merge(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
        """Change part of an object with a JSON merge patch."""
        answer = self._client.patch(path, headers={"content-type": "application/merge-patch+json"}, json=patch)
        _raise_for(answer)
        merged: dict[str, Any] = answer.json()
        return merged

    def watch(self, path: str, *, timeout_s: int, **params: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (type, object) events of a path, starting with the existing objects; ends after the timeout."""
        query = {"watch": "true", "timeoutSeconds": str(timeout_s), **params}
        with self._client.stream("GET", path, params=query, timeout=timeout_s + _TIMEOUT_S) as answer:
            if not answer.is_success:
                answer.read()
                _raise_for(answer)
            for line in answer.iter_lines():
                event = msgspec.json.decode(line)
                yield event["type"], event["object"]

    def apply_kwok_role(self) -> None:
        """Give kwok the permissions of kubelets, and no others."""
        meta = {"name": _KWOK_ROLE}
        rbac = "rbac.authorization.k8s.io"
        self.apply(
            f"/apis/{rbac}/v1/clusterroles/{_KWOK_ROLE}",
            {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": meta, "rules": list(_KWOK_RULES)},
        )
        self.apply(
            f"/apis/{rbac}/v1/clusterrolebindings/{_KWOK_ROLE}",
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": meta,
                "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": _KWOK_ROLE},
                "subjects": [{"apiGroup": rbac, "kind": "User", "name": certificates.KWOK.user}],
            },
        )

    def request_token(self, namespace: str, name: str, *, expires_s: int) -> str:
        """Return a token of a service account from the TokenRequest API."""
        answer = self.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": expires_s},
            },
        )
        return str(answer["status"]["token"])

    def apply(self, path: str, manifest: dict[str, Any]) -> None:
        """Create or change an object with a server-side apply."""
        answer = self._client.patch(
            path,
            params={"fieldManager": "kgwe-local", "force": "true"},
            headers={"content-type": "application/apply-patch+yaml"},
            json=manifest,
        )
        _raise_for(answer)

    def _send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx2.Response:
        try:
            answer = self._client.request(method, path, json=body)
        except httpx2.TransportError as exc:
            raise Transient(f"{method} {path}: the API server does not respond ({exc})") from exc
        _raise_for(answer)
        return answer


def _raise_for(answer: httpx2.Response) -> None:
    if answer.is_success:
        return
    try:
        message = answer.json()["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.text[:200]
    text = f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {message}"
    if answer.status_code == _NOT_FOUND:
        raise NotFound(text)
    if answer.status_code == _TOO_MANY or answer.status_code >= _SERVER_ERROR:
        raise Transient(text)
    raise Permanent(text)
