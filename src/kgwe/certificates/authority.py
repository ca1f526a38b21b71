"""A small certificate authority: it makes itself, and issues certificates for servers that are clients, too."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kgwe import errors

# Clocks of machines differ slightly.
_BACKDATE = dt.timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes


def make_authority(name: str, now: dt.datetime, validity: dt.timedelta) -> Pair:
    """Return a new authority, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} {x509.random_serial_number():x}"[:60])])
    built = (
        _start(subject, subject, key.public_key(), now, validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _encode(built, key)


def issue(authority: Pair, name: str, hosts: tuple[str, ...], now: dt.datetime, validity: dt.timedelta) -> Pair:
    """Return a certificate for a server with these names and addresses; it is valid for clients as well."""
    issuer, signing = load(authority.certificate), _load_key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = (
        _start(subject, issuer.subject, key.public_key(), now, validity)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([_name_host(each) for each in hosts or (name,)]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()),
            critical=False,
        )
        .sign(signing, hashes.SHA256())
    )
    return _encode(built, key)


def load(pem: bytes) -> x509.Certificate:
    """Return the first certificate of a PEM text; raise Permanent if there is none."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as exc:
        raise errors.Permanent(f"cannot read a certificate: {exc}") from exc


def is_issued_by(pem: bytes, authority: bytes) -> bool:
    """Whether the authority has signed the certificate."""
    try:
        load(pem).verify_directly_issued_by(load(authority))
    except Exception:  # noqa: BLE001 - the library has several errors for `no`
        return False
    return True


def is_whole(pair: Pair) -> bool:
    """Whether both can be read, and the key is that of the certificate."""
    try:
        return load(pair.certificate).public_key() == _load_key(pair.key).public_key()
    except Exception:  # noqa: BLE001 - as above
        return False


def may_sign(pem: bytes) -> bool:
    """Whether a certificate is one of an authority."""
    try:
        return load(pem).extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except Exception:  # noqa: BLE001 - as above
        return False


def has_hosts(pem: bytes, hosts: tuple[str, ...]) -> bool:
    """Whether the certificate names all these hosts and addresses."""
    try:
        named = load(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return not hosts
    found = set(named.get_values_for_type(x509.DNSName)) | {
        str(each) for each in named.get_values_for_type(x509.IPAddress)
    }
    return set(hosts) <= found


def _start(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime, validity: dt.timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + validity)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name_host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, None)
    except ValueError as exc:
        raise errors.Permanent(f"cannot read a private key: {exc}") from exc
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise errors.Permanent("the key of the authority is not one of an elliptic curve")
    return key


def _encode(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
