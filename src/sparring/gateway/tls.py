"""A self-signed certificate in the data folder, for machines that have no other."""

import datetime
import hashlib
import ipaddress
import socket
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sparring.durable import replace_file

SELF_SIGNED = "self-signed"
LIFE_DAYS = 365


def self_signed(data: Path, host: str, now: datetime.datetime) -> tuple[Path, Path]:
    """Certificate and key in the data folder, made again when there is none or it expires within a month."""
    certificate, key = data / "tls-cert.pem", data / "tls-key.pem"
    if not _still_good(certificate, now) or not key.exists():
        _make(certificate, key, host, now)
    return certificate, key


def fingerprint(certificate: Path) -> str:
    """SHA-256 of the certificate, as browsers and openssl show it."""
    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    digest = hashlib.sha256(found.public_bytes(serialization.Encoding.DER)).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


def _still_good(certificate: Path, now: datetime.datetime) -> bool:
    if not certificate.exists():
        return False
    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    return found.not_valid_after_utc - now > datetime.timedelta(days=30)


def _make(certificate: Path, key: Path, host: str, now: datetime.datetime) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sparring")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=LIFE_DAYS))
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    replace_file(key, pem, 0o600)
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def _names(host: str) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.DNSName(socket.gethostname())]
    names += [x509.IPAddress(ipaddress.ip_address(one)) for one in ("127.0.0.1", "::1")]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        names.append(x509.DNSName(host))
    return list(dict.fromkeys(names))
