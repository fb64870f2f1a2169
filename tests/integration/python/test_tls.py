"""TLS and what stands in the way of a start, by the Python client and the command line."""

import os
import ssl
import subprocess
import threading
import time

import pytest

import mneme

from certificates import tls_flags
from http_requests import ask
from waiting import wait_for


def test_tls_with_both_clients_and_the_command_line(start, certificates, run):
    trusted = mneme.tls_credentials(certificates.path("ca.pem"))
    server = start(*tls_flags(certificates), client_options={"credentials": trusted})
    assert server.client().generate("abc", max_tokens=1).usage.completion_tokens == 1
    stranger = mneme.tls_credentials(certificates.path("stranger.pem"))
    with pytest.raises(mneme.Unavailable):
        server.client(credentials=stranger).info()
    with pytest.raises(mneme.Unavailable):
        server.client(credentials=None).info()
    where = {"MNEME_SERVER": server.target}
    ca = certificates.path("ca.pem")
    code, out, err = run("mneme", "generate", "abc", "--tls-ca", ca, "--max-tokens", "1", **where)
    assert code == 0, err
    assert out
    assert run("mneme", "info", **where, MNEME_TLS_CA=str(ca))[0] == 0
    assert run("mneme", "--tls", "info", **where)[0] == 3  # not an authority of the system
    assert run("mneme", "info", **where)[0] == 3
    code, _, err = run("mneme", "info", "--tls-ca", "no/such/file", **where)
    assert code == 2
    assert "no/such/file" in err
    name = ("--tls-server-name", "elsewhere.example")
    assert run("mneme", "info", "--tls-ca", ca, *name, **where)[0] == 3


def test_mutual_tls(start, certificates, run):
    ca = certificates.path("ca.pem")

    def credentials(name):
        files = {"certificate": f"{name}.pem", "key": f"{name}.key"}
        return mneme.tls_credentials(ca, **{k: certificates.path(v) for k, v in files.items()})

    server = start(
        *tls_flags(certificates, mutual=True), client_options={"credentials": credentials("alice")}
    )
    server.client().session("s").send("abc", max_tokens=1)
    for refused in (mneme.tls_credentials(ca), credentials("foreign")):
        with pytest.raises(mneme.Unavailable):
            server.client(credentials=refused).info()
    with pytest.raises(mneme.SessionNotFound):
        server.client(credentials=credentials("server2")).sessions.get("s")
    identity = {
        "MNEME_SERVER": server.target,
        "MNEME_TLS_CA": str(ca),
        "MNEME_TLS_CERT": str(certificates.path("alice.pem")),
        "MNEME_TLS_KEY": str(certificates.path("alice.key")),
    }
    code, _, err = run("mneme", "session", "get", "s", **identity)
    assert code == 0, err
    with pytest.raises(ValueError, match="without the other"):
        mneme.tls_credentials(ca, certificate=ca)


def test_certificates_change_under_load(start, certificates):
    trusted = mneme.tls_credentials(certificates.path("ca.pem"))
    server = start(*tls_flags(certificates), client_options={"credentials": trusted})
    kept = server.client()
    long = kept.stream("abc", max_tokens=100_000_000, ignore_eos=True)
    next(long)
    failures, done = [], threading.Event()

    def work():
        while not done.is_set():
            try:
                with mneme.Client(server.target, credentials=trusted, retry=None) as client:
                    client.generate("abc", max_tokens=2)
            except mneme.MnemeError as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    served = lambda: subject_of(server.port, certificates)  # noqa: E731
    assert served() == "server"
    certificates.replace("live.pem", "server2.pem")  # and the key not yet
    wait_for(lambda: "is not the key" in server.log, "the complaint")
    assert served() == "server"
    failed = {
        'mneme_reloads_total{file="tls",outcome="failed"} 1',
        'mneme_last_reload_successful{file="tls"} 0',
    }
    wait_for(lambda: failed.issubset(metrics_of(server, certificates)), "its count")
    certificates.replace("live.key", "server2.key")
    wait_for(lambda: served() == "server2", "the new certificate")
    counted = 'mneme_reloads_total{file="tls",outcome="ok"} 1'
    wait_for(lambda: counted in metrics_of(server, certificates), "its count")
    lines = metrics_of(server, certificates)
    assert 'mneme_last_reload_successful{file="tls"} 1' in lines
    (expiry,) = (line for line in lines if line.startswith("mneme_tls_certificate_expiry_"))
    # Made for ten days, in the session of these tests.
    assert 9 * 86400 < float(expiry.split()[1]) - time.time() <= 10 * 86400
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    next(long)  # goes on
    long.cancel()


def metrics_of(server, certificates):
    """The lines of GET /metrics, which the HTTP port gives over TLS."""
    trusted = ssl.create_default_context(cafile=certificates.path("ca.pem"))
    status, _, text = ask(f"https://127.0.0.1:{server.http_port}", "/metrics", context=trusted)
    assert status == 200
    return text.decode().splitlines()


def subject_of(port, certificates):
    """The common name in the certificate that a new connection gets."""
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-alpn", "h2"],
        input=b"",
        capture_output=True,
        check=False,
        timeout=30,
    )
    text = subprocess.run(
        ["openssl", "x509", "-noout", "-subject", "-nameopt", "RFC2253"],
        input=done.stdout,
        capture_output=True,
        check=True,
    ).stdout.decode()
    return text.strip().removeprefix("subject=CN=")


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--ssl-certfile", "none.pem", "--ssl-keyfile", "server.key"], 5, "No such file"),
        (["--ssl-certfile", "server.pem", "--ssl-keyfile", "alice.key"], 5, "is not the key"),
        (["--ssl-certfile", "server.key", "--ssl-keyfile", "server.key"], 5, "no certificate"),
        (["--ssl-certfile", "server.pem"], 2, "--ssl-keyfile"),
        (["--api-key-file", "none"], 2, "No such file"),
        (["--api-key-file", "ca.pem"], 2, "ca.pem:1:"),
        (["--host", "0.0.0.0"], 2, "--insecure"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    bin_dir, golden_model, certificates, flags, code, message
):
    done = subprocess.run(
        [bin_dir / "mneme-server", "--model", golden_model, "--grpc-port", "0", *flags],
        cwd=certificates.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith("MNEME_")},
    )
    assert done.returncode == code
    assert done.stdout == ""
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("mneme-server: ")]
    assert message in line


def test_print_config_hides_the_key(run):
    code, out, _ = run("mneme-server", "--print-config", MNEME_API_KEY="hush-hush")
    assert code == 0
    assert "hush" not in out
