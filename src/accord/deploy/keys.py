"""Certificates and keys of a federation: an authority of its own, the server's certificate, and a key pair for each site."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accord.run import make

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName

_DAYS = 825  # the longest that common software accepts of a server's certificate
_SERVER = """This folder belongs on the server: `accord serve EXPERIMENT.toml --tls-dir {folder}`.
server.key is secret. sites/*.pub are the keys of the sites that may come in; take one away, and the next start leaves that site out.
The certificate is good for {names} until {until}; the nginx configuration of the documentation uses the same files.
"""
_SITE = """This folder belongs at {name}, and site.key nowhere else: `accord join SERVER:PORT --data ... --key site.key --ca ca.crt`.
ca.crt lets the site know the server; {name}.pub of the server's folder lets the server know the site.
"""
_AUTHORITY = """ca.key signs certificates of this federation. Keep this folder off the network; nobody needs it to run.
"""


def write_keys(folder: Path, sites: int, hosts: Sequence[str]) -> list[Path]:
    """Write all of it, each folder with a README line on where it goes; returns the folders.

    >>> import tempfile
    >>> [each.name for each in write_keys(Path(tempfile.mkdtemp()) / "keys", 2, ["fl.example.org"])]
    ['ca', 'server', 'site-1', 'site-2']
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{str(folder)!r} is not empty: keys are never written over; choose another folder")
    authority, server = new_key(), new_key()
    names = list(dict.fromkeys(["localhost", "127.0.0.1", *hosts]))
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=_DAYS)
    root = certificate("Accord federation", authority, authority, None, until, [])
    leaf = certificate(names[-1], server, authority, root, until, [general(each) for each in names])
    put(folder / "ca", {"ca.crt": pem(root), "README": _AUTHORITY.encode()}, {"ca.key": private(authority)})
    about = _SERVER.format(folder=folder / "server", names=", ".join(names), until=f"{until:%Y-%m-%d}")
    public = {"ca.crt": pem(root), "server.crt": pem(leaf), "README": about.encode()}
    for number in range(1, sites + 1):
        name, key = f"site-{number}", new_key()
        public[f"sites/{name}.pub"] = shared(key)
        put(folder / name, {"ca.crt": pem(root), "README": _SITE.format(name=name).encode()}, {"site.key": private(key, ssh=True)})
    put(folder / "server", public, {"server.key": private(server)})
    return [folder / "ca", folder / "server", *(folder / f"site-{number}" for number in range(1, sites + 1))]


def put(folder: Path, public: dict[str, bytes], hidden: dict[str, bytes]) -> None:
    """Write files, the hidden ones for their owner only."""
    make(folder)
    folder.chmod(0o700)
    for name, text in public.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text)
    for name, text in hidden.items():
        with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(text)


def new_key() -> EllipticCurvePrivateKey:
    """A key on the curve P-384, which Flower's nodes sign with."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def private(key: EllipticCurvePrivateKey, ssh: bool = False) -> bytes:
    """The file of a private key."""
    from cryptography.hazmat.primitives import serialization as s

    form = s.PrivateFormat.OpenSSH if ssh else s.PrivateFormat.PKCS8
    return key.private_bytes(s.Encoding.PEM, form, s.NoEncryption())


def shared(key: EllipticCurvePrivateKey) -> bytes:
    """The file of a public key, as ssh-keygen writes it."""
    from cryptography.hazmat.primitives import serialization as s

    return key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH) + b"\n"


def pem(found: Certificate) -> bytes:
    """The file of a certificate."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return found.public_bytes(Encoding.PEM)


def general(host: str) -> GeneralName:
    """A host as certificates name it: by address or by name."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    signer: EllipticCurvePrivateKey,
    issuer: Certificate | None,
    until: datetime.datetime,
    hosts: Sequence[GeneralName],
) -> Certificate:
    """A certificate for a key: the authority's own without an issuer, else a server's that is good for these hosts."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1))
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if issuer is None:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    else:
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        made = made.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return made.add_extension(usage, critical=True).sign(signer, hashes.SHA384())
