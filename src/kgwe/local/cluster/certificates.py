"""The certificates of a local cluster: one authority, one certificate per server and per client.

Each process is a separate user of the API server (CN is the user, O its groups), so RBAC and the audit log
distinguish them. All certificates are renewed together once the authority has less than a day left. The key that
signs service account tokens is separate, because tokens outlive certificates.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from pathlib import Path

VALIDITY = dt.timedelta(days=365)
# Clocks of machines that share a state directory may differ slightly.
_BACKDATE = dt.timedelta(minutes=5)
_RENEW_BEFORE = dt.timedelta(days=1)

SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
# The first address of the service range belongs to the API server's own service.
SERVER_ADDRESSES = ("127.0.0.1", "::1", "10.96.0.1")


@dataclass(frozen=True, slots=True)
class Identity:
    """The subject of a certificate."""

    file: str
    user: str
    groups: tuple[str, ...] = ()
    server: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    certificate: Path
    key: Path


SERVER = Identity("server", "kube-apiserver", server=True)
ETCD_CLIENT = Identity("etcd-client", "kube-apiserver-etcd-client")
# system:masters bypasses RBAC; only the administrator gets it.
ADMIN = Identity("admin", "kgwe:admin", ("system:masters",))
CONTROLLER_MANAGER = Identity("kube-controller-manager", "system:kube-controller-manager")
SCHEDULER = Identity("kube-scheduler", "system:kube-scheduler")
KWOK = Identity("kwok", "kgwe:kwok")
# The server certificate of KGWE's extender.
EXTENDER = Identity("kgwe-extender", "kgwe-extender", server=True)
# The API server as a client of kubelets, and the processes of the real node (`kgwe local node`).
KUBELET_CLIENT = Identity("kubelet-client", "kube-apiserver-kubelet-client")
REAL_NODE = "real-0"
KUBELET = Identity("kubelet", f"system:node:{REAL_NODE}", ("system:nodes",))
KUBE_PROXY = Identity("kube-proxy", "system:kube-proxy")
COREDNS = Identity("coredns", "kgwe:coredns")
_NODE_IDENTITIES = (KUBELET_CLIENT, KUBELET, KUBE_PROXY, COREDNS)
# The server certificate of KGWE's console.
CONSOLE = Identity("kgwe-console", "kgwe-console", server=True)
IDENTITIES = (SERVER, ETCD_CLIENT, ADMIN, CONTROLLER_MANAGER, SCHEDULER, KWOK, EXTENDER, CONSOLE, *_NODE_IDENTITIES)


@dataclass(frozen=True, slots=True)
class Certificates:
    """The certificate files, all in one directory."""

    directory: Path

    @property
    def authority(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def service_account_key(self) -> Path:
        return self.directory / "service-account.key"

    def pair(self, identity: Identity) -> Pair:
        return Pair(self.directory / f"{identity.file}.crt", self.directory / f"{identity.file}.key")


def ensure(directory: Path, now: dt.datetime) -> Certificates:
    """Return the certificates in the directory, renewed if they expire soon."""
    certificates = Certificates(directory)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not certificates.service_account_key.exists():
        _write_key(certificates.service_account_key, ec.generate_private_key(ec.SECP256R1()))
    if not _are_usable(certificates, now):
        _issue_all(certificates, now)
    return certificates


def _are_usable(certificates: Certificates, now: dt.datetime) -> bool:
    leaves = [certificates.pair(identity) for identity in IDENTITIES]
    if not all(pair.key.exists() for pair in leaves):
        return False
    try:
        ends = [
            x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
            for path in (certificates.authority, *(pair.certificate for pair in leaves))
        ]
    except (FileNotFoundError, ValueError):
        return False
    return min(ends) - now > _RENEW_BEFORE


def _issue_all(certificates: Certificates, now: dt.datetime) -> None:
    # The API server verifies this signature at each request of a client with a certificate. RSA verification takes
    # half the time of elliptic curves, which took an eighth of its CPU.
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kgwe-local-ca")])
    authority = (
        _build_certificate(name, name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificates.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    for identity in IDENTITIES:
        _issue_certificate(certificates.pair(identity), identity, authority, key, now)


def _issue_certificate(
    pair: Pair,
    identity: Identity,
    authority: x509.Certificate,
    authority_key: rsa.RSAPrivateKey,
    now: dt.datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups]
    attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, identity.user))
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.server:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    builder = (
        _build_certificate(x509.Name(attributes), authority.subject, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
    )
    if identity.server:
        names = [
            *(x509.DNSName(name) for name in SERVER_NAMES),
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in SERVER_ADDRESSES),
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(authority_key, hashes.SHA256())
    _write_key(pair.key, key)
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _build_certificate(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey, now: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            # "EC PRIVATE KEY" is the form of service account keys that all versions of kube-controller-manager read.
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
