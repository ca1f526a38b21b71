"""Certificates that the components accept, and the kubeconfigs that carry them."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
from typing import TYPE_CHECKING

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import verification
from cryptography.x509.oid import NameOID

from kgwe.local.cluster import certificates, kubeconfig
from kgwe.local.cluster.certificates import IDENTITIES, Certificates

if TYPE_CHECKING:
    from pathlib import Path

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.ensure(tmp_path_factory.mktemp("pki"), NOW)


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def builder(issued: Certificates) -> verification.PolicyBuilder:
    return verification.PolicyBuilder().store(verification.Store([load(issued.authority)])).time(NOW)


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(x509.DNSName("localhost"), id="localhost"),
        pytest.param(x509.DNSName("kubernetes.default.svc"), id="the service"),
        pytest.param(x509.IPAddress(ipaddress.ip_address("127.0.0.1")), id="loopback"),
        pytest.param(x509.IPAddress(ipaddress.ip_address("10.96.0.1")), id="the service address"),
    ],
)
def test_the_server_is_trusted_under_each_of_its_names(issued: Certificates, subject: x509.DNSName | x509.IPAddress):
    leaf = load(issued.pair(certificates.SERVER).certificate)

    chain = builder(issued).build_server_verifier(subject).verify(leaf, [])

    assert chain[-1] == load(issued.authority)


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda identity: identity.file)
def test_every_leaf_is_signed_by_the_authority_and_has_its_own_key(
    issued: Certificates, identity: certificates.Identity
):
    pair = issued.pair(identity)
    leaf = load(pair.certificate)

    leaf.verify_directly_issued_by(load(issued.authority))
    assert load_pem_private_key(pair.key.read_bytes(), None).public_key() == leaf.public_key()
    assert pair.key.stat().st_mode & 0o077 == 0
    [user] = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    groups = leaf.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert (user.value, tuple(group.value for group in groups)) == (identity.user, identity.groups)


def test_only_the_administrator_is_a_master(issued: Certificates):
    del issued
    assert [each.file for each in IDENTITIES if "system:masters" in each.groups] == ["admin"]


def test_certificates_are_kept_while_they_last_and_the_token_key_for_ever(tmp_path: Path):
    first = certificates.ensure(tmp_path, NOW)
    authority, token_key = first.authority.read_bytes(), first.service_account_key.read_bytes()

    certificates.ensure(tmp_path, NOW + dt.timedelta(days=300))
    assert first.authority.read_bytes() == authority

    certificates.ensure(tmp_path, NOW + certificates.VALIDITY)
    assert first.authority.read_bytes() != authority
    assert first.service_account_key.read_bytes() == token_key


@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_damaged_certificates_are_replaced(tmp_path: Path, damage: str):
    pki = certificates.ensure(tmp_path, NOW)
    victim = pki.pair(certificates.KWOK).certificate
    victim.unlink()
    if damage == "empty":
        victim.touch()

    certificates.ensure(tmp_path, NOW)

    load(victim).verify_directly_issued_by(load(pki.authority))


def test_a_kubeconfig_is_complete_in_itself_and_private(issued: Certificates, tmp_path: Path):
    admin = issued.pair(certificates.ADMIN)
    path = kubeconfig.write_kubeconfig(
        tmp_path / "config",
        context="kgwe",
        server="https://127.0.0.1:1",
        authority=issued.authority,
        user_name="admin",
        user=kubeconfig.certificate_user(admin),
    )

    document = yaml.safe_load(path.read_text())
    assert path.stat().st_mode & 0o077 == 0
    assert document["current-context"] == document["contexts"][0]["name"] == "kgwe"
    assert base64.b64decode(document["users"][0]["user"]["client-key-data"]) == admin.key.read_bytes()
    assert document["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert [each.name for each in tmp_path.iterdir()] == ["config"]
