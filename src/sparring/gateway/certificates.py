"""A certificate of this machine, made on first start, and its fingerprint, by which others recognise it."""

import datetime
import fcntl
import hashlib
import ipaddress
import logging
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sparring.durable import replace_file
from sparring.gateway.identity import is_loopback

log = logging.getLogger(__name__)

LIFE_DAYS, MAX_NAMES = 365, 64  # of a certificate that is made here


def self_signed(data: Path, host: str, now: datetime.datetime) -> tuple[Path, Path]:
    """Certificate and key in the data folder. They are made again when the certificate expires within a month, does not
    name `host`, or names none of this machine's addresses where others may call; it keeps the names that it had."""
    certificate, key = data / "tls-cert.pem", data / "tls-key.pem"
    needed, addresses, had, days_left = *_certificate_names(host), set[x509.GeneralName](), 0
    if certificate.exists() and key.exists():
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        had = set(found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        days_left = (found.not_valid_after_utc - now).days
    if days_left < 30 or not needed <= had or (addresses and not addresses & had):
        if had:
            log.warning("%s was made again: clients that were given the one before need this one", certificate)
        _make_certificate(certificate, key, [*needed, *addresses, *had - needed - addresses][:MAX_NAMES], now)
    return certificate, key


def fingerprint(certificate: Path) -> str:
    """SHA-256 of the certificate, as browsers and openssl show it."""
    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    digest = hashlib.sha256(found.public_bytes(serialization.Encoding.DER)).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


def _make_certificate(certificate: Path, key: Path, names: list[x509.GeneralName], now: datetime.datetime) -> None:
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
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    replace_file(key, pem, 0o600)
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def _certificate_names(host: str) -> tuple[set[x509.GeneralName], set[x509.GeneralName]]:
    """This machine's names and `host`; and, beyond loopback, its addresses on the networks that it is in."""
    names: set[x509.GeneralName] = {x509.DNSName("localhost"), x509.DNSName(socket.gethostname())}
    names |= {x509.IPAddress(ipaddress.ip_address(one)) for one in ("127.0.0.1", "::1")}
    try:
        named = ipaddress.ip_address(host.strip("[]"))
        names |= set() if named.is_unspecified else {x509.IPAddress(named)}
    except ValueError:
        names.add(x509.DNSName(host))
    own = [] if is_loopback(host) else map(ipaddress.ip_address, own_addresses())
    return names, {x509.IPAddress(one) for one in own if not one.is_loopback}


def own_addresses() -> Iterator[str]:
    """The IPv4 address of each network interface (Linux), and those from which this machine calls others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, interface in socket.if_nameindex():
            with suppress(OSError):  # it has none
                asked = fcntl.ioctl(probe, 0x8915, struct.pack("256s", interface.encode()))  # SIOCGIFADDR
                yield socket.inet_ntoa(asked[20:24])
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))  # chooses a route, and sends nothing
            yield probe.getsockname()[0].partition("%")[0]
