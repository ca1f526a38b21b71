"""Checks of the API server: version, kinds, policies, certificates and the namespace."""

from __future__ import annotations

import base64
import datetime as dt
import re
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.certificates import authority
from kgwe.install.doctor.findings import Finding, Level
from kgwe.kube.crd import definitions

if TYPE_CHECKING:
    from kgwe.install.doctor.findings import Cluster

_OLDEST: Final = (1, 30)
_MUTATING: Final = (1, 36)
_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1"
_SOON: Final = dt.timedelta(days=14)


async def check_version(cluster: Cluster) -> list[Finding]:
    found = await cluster.get("/version") or {}
    text = str(found.get("gitVersion", ""))
    match = re.match(r"v?(\d+)\.(\d+)", text)
    if match is None:
        return [Finding("kubernetes", Level.UNKNOWN, f"the version {text!r} is not understood")]
    version = int(match[1]), int(match[2])
    if version < _OLDEST:
        fix = "upgrade the cluster: KGWE needs Kubernetes 1.30 or newer"
        return [Finding("kubernetes", Level.ERROR, f"Kubernetes {text} is too old", fix)]
    if version < _MUTATING:
        message = f"Kubernetes {text} has no MutatingAdmissionPolicy (1.36): gangs cost more calls and writes"
        return [Finding("kubernetes", Level.WARNING, message, "install the webhook: --set webhook.enabled=true")]
    return [Finding("kubernetes", Level.OK, f"Kubernetes {text}")]


async def check_kinds(cluster: Cluster) -> list[Finding]:
    """Whether every kind exists, is served, and has the fields of this release."""
    problems = []
    for kind in definitions.KINDS:
        body = definitions.manifest(kind)
        name = body["metadata"]["name"]
        found = await cluster.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        if found is None:
            problems.append(f"{name} is missing")
        elif not _is_established(found):
            problems.append(f"{name} is not served yet")
        elif _schemas(found) != _schemas(body):
            problems.append(f"{name} is of another release")
    if problems:
        fix = "install the kinds of this release: kgwe crds | kubectl apply --server-side -f -"
        return [Finding("kinds", Level.ERROR, "; ".join(problems), fix)]
    return [Finding("kinds", Level.OK, f"{len(definitions.KINDS)} kinds are installed and current")]


def _is_established(found: dict[str, Any]) -> bool:
    conditions = found.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _schemas(body: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each["schema"]["openAPIV3Schema"] for each in body["spec"]["versions"]}


async def check_policies(cluster: Cluster) -> list[Finding]:
    found = []
    for kind, name, without in (
        (
            "validatingadmissionpolicies",
            "kgwe-decisions-on-pods",
            "users can write decisions on pods; KGWE ignores them",
        ),
        ("validatingadmissionpolicies", "kgwe-decisions-in-templates", "users can write decisions into pod templates"),
        ("mutatingadmissionpolicies", "kgwe-gang-gate", "kube-scheduler retries every pod of an incomplete gang"),
        ("mutatingadmissionpolicies", "kgwe-seats", "pods of workloads cost one more write each"),
    ):
        policy = await cluster.get(f"{_POLICIES}/{kind}/{name}")
        bindings = await cluster.get(f"{_POLICIES}/{kind.removesuffix('ies')}ybindings/{name}")
        if policy is None or bindings is None:
            what = "is missing" if policy is None else "has no binding"
            fix = "install it: --set policies.decisions=true --set policies.gate=true"
            found.append(Finding("policies", Level.WARNING, f"policy {name} {what}: {without}", fix))
            continue
        warnings = (policy.get("status", {}).get("typeChecking") or {}).get("expressionWarnings") or ()
        if warnings:
            message = f"policy {name}: the API server warns: {warnings[0]['warning'].strip()[:200]}"
            found.append(Finding("policies", Level.WARNING, message, "install the kinds first, then the policies"))
    return found or [Finding("policies", Level.OK, "decisions are protected, and gangs wait behind a gate")]


async def check_namespace(cluster: Cluster) -> list[Finding]:
    """Whether the Pod Security level of both namespaces is the one that KGWE needs."""
    found = []
    key = "pod-security.kubernetes.io/enforce"
    space = await cluster.get(f"/api/v1/namespaces/{cluster.namespace}")
    if space is None:
        fix = f"install KGWE: kgwe install --namespace {cluster.namespace}"
        return [Finding("namespace", Level.ERROR, f"namespace {cluster.namespace} does not exist", fix)]
    level = (space["metadata"].get("labels") or {}).get(key)
    if level != "restricted":
        fix = f"kubectl label namespace {cluster.namespace} {key}=restricted"
        message = f"namespace {cluster.namespace} does not enforce the restricted Pod Security level"
        found.append(Finding("namespace", Level.WARNING, message, fix))
    node_space = await cluster.get(f"/api/v1/namespaces/{cluster.node_namespace}")
    if node_space is not None:
        level = (node_space["metadata"].get("labels") or {}).get(key)
        if level not in {None, "privileged"}:
            fix = f"kubectl label --overwrite namespace {cluster.node_namespace} {key}=privileged"
            message = f"namespace {cluster.node_namespace} enforces {level}: the agent cannot start"
            found.append(Finding("namespace", Level.ERROR, message, fix))
    return found or [Finding("namespace", Level.OK, f"{cluster.namespace} enforces the restricted Pod Security level")]


async def check_certificates(cluster: Cluster, now: dt.datetime) -> list[Finding]:
    """Whether the certificates of KGWE's servers exist and are valid for long enough."""
    found: list[Finding] = []
    empty: list[str] = []
    good = 0
    for secret in await cluster.list(f"/api/v1/namespaces/{cluster.namespace}/secrets"):
        name = secret["metadata"]["name"]
        if not (name.startswith("kgwe-") and name.endswith("-tls")):
            continue
        data = secret.get("data") or {}
        if not data.get("tls.crt"):
            empty.append(name)
            continue
        finding = _judge_certificate(name, data, now)
        if finding is None:
            good += 1
        else:
            found.append(finding)
    if empty:
        fix = "look at the log of kgwe-webhook (certificates.source kgwe) or of cert-manager"
        found.append(Finding("certificates", Level.ERROR, f"no certificate yet in Secret {', '.join(empty)}", fix))
    if good and not found:
        return [Finding("certificates", Level.OK, f"{good} certificates are valid")]
    return found or [Finding("certificates", Level.SKIPPED, "there are no Secrets with certificates of KGWE")]


def _judge_certificate(name: str, data: dict[str, str], now: dt.datetime) -> Finding | None:
    try:
        end = authority.load(base64.b64decode(data["tls.crt"])).not_valid_after_utc
    except (errors.Permanent, ValueError) as exc:
        fix = f"delete the Secret: kubectl delete secret {name}; it is issued again"
        return Finding("certificates", Level.ERROR, f"Secret {name} cannot be read: {exc}", fix)
    fix = "check that kgwe-webhook runs: it replaces certificates when a third of their time is left"
    if end <= now:
        return Finding("certificates", Level.ERROR, f"the certificate in {name} expired on {end:%Y-%m-%d}", fix)
    if end - now < _SOON:
        return Finding("certificates", Level.WARNING, f"the certificate in {name} expires on {end:%Y-%m-%d}", fix)
    return None
