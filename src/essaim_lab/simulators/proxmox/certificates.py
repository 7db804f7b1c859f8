"""A certificate authority for one run, and a certificate of its making for this computer."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS = 365


def make(folder: Path, names: list[str]) -> tuple[Path, ssl.SSLContext]:
    """Write ca.pem into the folder; give its path and what a server presents itself with."""
    now = dt.datetime.now(dt.UTC)
    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Proxmox VE simulator CA")])
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    root = (
        _begun(root_name, root_name, root_key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(ca=True), critical=True)
        .sign(root_key, hashes.SHA256())
    )
    told = [x509.DNSName(name) for name in names]
    told_ips = [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "::1")]
    leaf = (
        _begun(own, root_name, key, now, root_key)
        .add_extension(x509.SubjectAlternativeName([*told, *told_ips]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(ca=False), critical=True)
        .sign(root_key, hashes.SHA256())
    )
    ca, chain = folder / "ca.pem", folder / "server.pem"
    ca.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    chain.touch(mode=0o600)
    chain.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + leaf.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return ca, context


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
    by: ec.EllipticCurvePrivateKey | None = None,
) -> x509.CertificateBuilder:
    signer = (by or key).public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
