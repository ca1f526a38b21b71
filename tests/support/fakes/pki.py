"""An authority that issues certificates with the names a test asks for."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kgwe.rpc.tls import Files

if TYPE_CHECKING:
    from pathlib import Path

_PEM = serialization.Encoding.PEM


class Authority:
    """Certificates below one folder, all from one authority."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test-authority")
        self._file = folder / "ca.crt"
        built = self._builder(self._name, self._key.public_key())
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._file.write_bytes(built.sign(self._key, hashes.SHA256()).public_bytes(_PEM))

    def issue(self, common_name: str, *dns: str) -> Files:
        """A certificate for clients and servers, with these alternative names."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        built = self._builder(_name(common_name), key.public_key())
        built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        built = built.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if dns:
            names = x509.SubjectAlternativeName([x509.DNSName(each) for each in dns])
            built = built.add_extension(names, critical=False)
        files = Files(self._folder / f"{common_name}.crt", self._folder / f"{common_name}.key", self._file)
        files.certificate.write_bytes(built.sign(self._key, hashes.SHA256()).public_bytes(_PEM))
        files.key.write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return files

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(days=1))
        )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
