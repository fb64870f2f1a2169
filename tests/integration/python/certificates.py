"""Authorities and certificates for tests, made by the openssl command."""

import os
import subprocess
from pathlib import Path


class Certificates:
    """PEM files in a folder: `path("server.pem")`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / name

    def openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    def authority(self, name: str) -> None:
        """NAME.pem and NAME.key."""
        self.openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "10", "-subj", f"/CN={name}"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem"),
        )

    def make(self, name: str, authority: str, alternative_names: str = "") -> None:
        """A certificate of that authority for /CN=NAME."""
        more = ["-addext", f"subjectAltName={alternative_names}"] if alternative_names else []
        self.openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr", *more),
        )
        self.openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem"),
            *("-CAkey", f"{authority}.key", "-days", "10", "-copy_extensions", "copy"),
            *("-out", f"{name}.pem"),
        )

    def replace(self, name: str, source: str) -> None:
        """Puts a copy of `source` in the place of `name`, in one piece."""
        following = self.path(name + ".next")
        following.write_bytes(self.path(source).read_bytes())
        os.replace(following, self.path(name))


def tls_flags(files, *, mutual=False):
    files.replace("live.pem", "server.pem")
    files.replace("live.key", "server.key")
    flags = ["--ssl-certfile", files.path("live.pem"), "--ssl-keyfile", files.path("live.key")]
    return [*flags, "--ssl-ca-certs", files.path("ca.pem")] if mutual else flags
