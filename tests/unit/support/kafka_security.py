"""Certificates, credentials, tokens and security files for tests of the Kafka endpoint."""

from __future__ import annotations

import base64
import datetime
import functools
import ipaddress
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from fake_source import FakeSource

from tiered.serve.connection import Limits
from tiered.serve.handlers.service import Service
from tiered.serve.security.credentials import Credentials, write_credentials
from tiered.serve.security.security import Security
from tiered.serve.server import KafkaServer

PASSWORDS = {"alice": "alice-secret", "bob": "bob, the =secret"}
ISSUER, AUDIENCE = "https://issuer.example", "tiered"


class Clock:
    """Seconds that pass only by assignment."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True)
class Authority:
    """A certificate authority and the certificates that it issues, as PEM files of one directory."""

    folder: Path
    name: str
    key: Any
    certificate: x509.Certificate

    @classmethod
    def new(cls, folder: Path, name: str = "ca") -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(_name(name), _name(name), key, key, is_authority=True)
        folder.mkdir(exist_ok=True)
        made = cls(folder, name, key, certificate)
        made.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return made

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def issue(self, name: str, *, common_name: str = "localhost", to: str | None = None) -> Path:
        """Write NAME.pem, the certificate, and NAME.key; `to`: under these names. Returns the certificate's path."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(_name(common_name, "tests"), self.certificate.subject, key, self.key)
        path = self.folder / f"{to or name}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.with_suffix(".key").write_bytes(private)
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path


def _name(common_name: str, organization: str | None = None) -> x509.Name:
    parts = [x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)]
    if organization is not None:
        parts.insert(0, x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: Any, signing_key: Any, *, is_authority: bool = False
) -> x509.Certificate:
    now, hour = datetime.datetime.now(datetime.UTC), datetime.timedelta(hours=1)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - hour)
        .not_valid_after(now + hour)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
        .sign(signing_key, hashes.SHA256())
    )


@functools.cache
def credentials() -> Credentials:
    found = Credentials()
    for user, password in PASSWORDS.items():
        found = found.with_user(user, password, iterations=4096)
    return found


@functools.cache
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@functools.cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def jwks() -> dict[str, Any]:
    public, point = rsa_key().public_key().public_numbers(), ec_key().public_key().public_numbers()
    return {
        "keys": [
            {"kty": "RSA", "kid": "rsa-1", "alg": "RS256", "use": "sig", "n": number(public.n), "e": number(public.e)},
            {"kty": "EC", "kid": "ec-1", "crv": "P-256", "x": number(point.x), "y": number(point.y)},
            {"kty": "oct", "kid": "shared", "k": "c2VjcmV0"},
        ]
    }


def number(value: int) -> str:
    return encoded(value.to_bytes((value.bit_length() + 7) // 8))


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(
    algorithm: str = "RS256", kid: str | None = "rsa-1", *, head: dict[str, Any] | None = None, **claims: Any
) -> str:
    """A signed token; a claim that is None is left out."""
    now_s = int(time.time())
    body = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "iat": now_s, "exp": now_s + 300, **claims}
    header = {"alg": algorithm, "typ": "JWT", "kid": kid, **(head or {})}
    parts = ({key: each for key, each in part.items() if each is not None} for part in (header, body))
    signed = ".".join(encoded(json.dumps(each).encode()) for each in parts)
    return f"{signed}.{encoded(signature(algorithm, signed.encode()))}"


def signature(algorithm: str, signed: bytes) -> bytes:
    if algorithm == "ES256":
        r, s = decode_dss_signature(ec_key().sign(signed, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32) + s.to_bytes(32)
    return rsa_key().sign(signed, padding.PKCS1v15(), hashes.SHA256())


@dataclass(frozen=True)
class Place:
    """A directory with a security file and what it names."""

    folder: Path
    authority: Authority

    @classmethod
    def new(cls, folder: Path) -> Place:
        authority = Authority.new(folder)
        authority.issue("server")
        write_credentials(str(folder / "users.json"), credentials())
        (folder / "jwks.json").write_text(json.dumps(jwks()))
        return cls(folder, authority)

    @property
    def file(self) -> Path:
        return self.folder / "security.toml"

    def write(self, *parts: str) -> Path:
        self.file.write_text("\n".join(parts))
        return self.file


TLS = """
ssl.certificate.file = "server.pem"
ssl.key.file = "server.key"
"""
SASL = """
sasl.enabled.mechanisms = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
sasl.credentials.file = "users.json"
sasl.oauthbearer.jwks.file = "jwks.json"
sasl.oauthbearer.expected.issuer = "https://issuer.example"
sasl.oauthbearer.expected.audience = "tiered"
connection.failed.authentication.delay.ms = 1
"""


@contextmanager
def secured(place: Place, source: FakeSource | None = None, **limits: Any) -> Iterator[KafkaServer]:
    """A server over a fake source, with the security file of the place; its files are read again by `refresh` only."""
    security = Security(str(place.file), time.monotonic, time.time)
    service = Service(source=source or FakeSource(orders=50), security=security)
    server = KafkaServer("127.0.0.1", 0, service, limits=Limits(**limits))
    server.start()
    try:
        yield server
    finally:
        server.close()
        security.close()
