"""Keys, certificates and limits of a real server, by the Python client and the command line."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time

import grpc
import pytest

import mneme

from certificates import Certificates

RELOAD_TIMEOUT_S = 20.0


def wait_for(condition, what):
    deadline = time.monotonic() + RELOAD_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.05)


@pytest.fixture
def run(bin_dir):
    """Runs a program of ours to its end: exit code, standard output and standard error."""

    def run_program(program, *words, stdin="", **environment):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("MNEME_")}
        done = subprocess.run(
            [bin_dir / program, *map(str, words)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**clean, **environment},
        )
        return done.returncode, done.stdout, done.stderr

    return run_program


@pytest.fixture
def new_key(run):
    """Makes a key: the key itself, and its line for the file."""

    def make(name, options=""):
        code, out, err = run("mneme-server", "--new-api-key", name)
        assert code == 0, err
        key, line = out.splitlines()
        return key, line + options

    return make


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    files = Certificates(tmp_path_factory.mktemp("tls"))
    files.authority("ca")
    files.authority("stranger")
    for name in ("server", "server2"):
        files.make(name, "ca", "DNS:localhost,IP:127.0.0.1")
    files.make("alice", "ca")
    files.make("foreign", "stranger")
    return files


def tls_flags(files, *, mutual=False):
    files.replace("live.pem", "server.pem")
    files.replace("live.key", "server.key")
    flags = ["--ssl-certfile", files.path("live.pem"), "--ssl-keyfile", files.path("live.key")]
    return [*flags, "--ssl-ca-certs", files.path("ca.pem")] if mutual else flags


# --- Keys ---


def test_keys_are_made_and_hashed(run, new_key):
    key, line = new_key("alice")
    assert key.startswith("mneme-")
    assert line.startswith("alice:sha256-")
    assert key not in line
    code, out, _ = run("mneme-server", "--hash-api-key", "alice", stdin=key + "\n")
    assert (code, out) == (0, line + "\n")
    code, out, err = run("mneme-server", "--new-api-key", "two words")
    assert (code, out) == (2, "")
    assert "two words" in err
    assert run("mneme-server", "--hash-api-key", "alice")[0] == 2


def test_sessions_belong_to_keys(start, new_key, tmp_path, run, name):
    keys = {who: new_key(who) for who in ("alice", "bob")}
    file = tmp_path / "keys"
    file.write_text("".join(line + "\n" for _, line in keys.values()))
    server = start("--api-key-file", file)
    alice, bob = (server.client(api_key=keys[who][0]) for who in ("alice", "bob"))
    assert server.client().health() is mneme.ServingStatus.SERVING
    with pytest.raises(mneme.Unauthenticated, match="API key is needed"):
        server.client().info()
    with pytest.raises(mneme.Unauthenticated, match="unknown"):
        server.client(api_key=keys["alice"][0] + "x").generate("a", max_tokens=1)

    position = (
        alice.session(name).send("secret words", max_tokens=4, ignore_eos=True).session.position
    )
    assert alice.sessions.get(name).position == position
    assert [s.name for s in alice.sessions.list()] == [name]
    assert list(bob.sessions.list()) == []
    for call in (
        lambda: bob.sessions.get(name),
        lambda: bob.sessions.delete(name),
        lambda: bob.sessions.fork(name, "copy"),
        lambda: bob.generate("x", session=name, create_if_missing=False, max_tokens=1),
    ):
        with pytest.raises(mneme.SessionNotFound):
            call()
    bob.sessions.create(name)  # his own
    assert bob.sessions.get(name).position == 0
    assert alice.sessions.get(name).position == position
    # The same idempotency key of two clients is two keys.
    first = alice.generate("abc", max_tokens=2, seed=1, idempotency_key="k")
    other = bob.generate("xyz", max_tokens=2, seed=1, idempotency_key="k")
    assert not other.replayed
    assert alice.generate("abc", max_tokens=2, seed=1, idempotency_key="k").replayed
    assert first.usage.prompt_tokens == other.usage.prompt_tokens

    # The command line takes the key from the variable.
    where = {"MNEME_SERVER": server.target}
    code, out, err = run("mneme", "session", "list", **where, MNEME_API_KEY=keys["alice"][0])
    assert code == 0, err
    assert name in out
    code, _, err = run("mneme", "session", "list", **where)
    assert code == 7
    assert "UNAUTHENTICATED" in err
    assert run("mneme", "health", **where)[0] == 0
    assert run("mneme", "info", "--api-key", keys["bob"][0], **where)[0] == 0
    for secret in (keys["alice"][0], keys["bob"][0], "secret words"):
        assert secret not in server.log


def test_keys_change_without_a_restart(start, new_key, tmp_path):
    (old, old_line), (new, new_line) = new_key("alice"), new_key("alice")
    file = tmp_path / "keys"
    file.write_text(old_line + "\n")
    server = start("--api-key-file", file)
    server.client(api_key=old).session("s").send("abc", max_tokens=1)

    def accepted(key):
        try:
            server.client(api_key=key).info()
        except mneme.Unauthenticated:
            return False
        return True

    file.write_text(f"{old_line}\n{new_line}\n")
    wait_for(lambda: accepted(new), "the new key")
    assert accepted(old)
    assert server.client(api_key=new).sessions.get("s").position > 0  # the same client
    file.write_text("nonsense\n")
    server.signal(signal.SIGHUP)
    wait_for(lambda: "nonsense" not in server.log and "keys:1:" in server.log, "the complaint")
    assert accepted(new)
    file.write_text(new_line + "\n")
    server.signal(signal.SIGHUP)
    wait_for(lambda: not accepted(old), "the end of the old key")
    assert accepted(new)
    assert server.alive()


def test_limits_of_a_key(start, new_key, tmp_path):
    key, line = new_key("alice", ":streams=2,sessions=1,tokens-per-minute=1000")
    file = tmp_path / "keys"
    file.write_text(line + "\n")
    client = start("--api-key-file", file).client(api_key=key)
    running = [client.stream("abc", max_tokens=400, ignore_eos=True) for _ in range(2)]
    for stream in running:
        next(stream)
    with pytest.raises(mneme.Overloaded) as caught:
        client.generate("abc", max_tokens=1)
    assert caught.value.reason == "KEY_STREAM_LIMIT"
    assert caught.value.retry_after
    for stream in running:
        stream.cancel()
    wait_for(lambda: client.info().statistics.requests_running == 0, "the end of both")
    client.sessions.create("one")
    with pytest.raises(mneme.Overloaded) as caught:
        client.sessions.create("two")
    assert caught.value.reason == "KEY_SESSION_LIMIT"
    client.generate("abc", max_tokens=4, session="one")
    with pytest.raises(mneme.Overloaded):
        client.generate("abc", max_tokens=4, session="two")
    for _ in range(2):  # of 403 tokens each; 1000 are there
        client.generate("abc", max_tokens=400, ignore_eos=True)
    with pytest.raises(mneme.Overloaded) as caught:
        client.generate("abc", max_tokens=900)
    assert caught.value.reason == "KEY_TOKEN_LIMIT"
    assert 0 < caught.value.retry_after <= 60
    with pytest.raises(mneme.InvalidArgument, match="1000"):
        client.generate("abc", max_tokens=2000)


def test_one_key_for_all_comes_from_the_variable(start):
    server = start(environment={"MNEME_API_KEY": "a-key-of-enough-length"})
    client = server.client(api_key="a-key-of-enough-length")
    assert client.generate("abc", max_tokens=1).usage.completion_tokens == 1
    with pytest.raises(mneme.Unauthenticated):
        server.client(api_key="another").info()
    assert "a-key-of-enough-length" not in server.log
    assert "command line" not in server.log
    server = start("--api-key", "short")
    assert "short" not in server.log
    assert "can be read by every user" in server.log
    assert "guessed" in server.log


def test_admin_calls_need_an_admin(start, new_key, tmp_path, run):
    (user, user_line), (admin, admin_line) = new_key("alice"), new_key("ops", ":admin")
    file = tmp_path / "keys"
    file.write_text(f"{user_line}\n{admin_line}\n")
    server = start("--api-key-file", file)
    where = {"MNEME_SERVER": server.target}
    code, _, err = run("mneme", "admin", "reload", **where, MNEME_API_KEY=user)
    assert code == 7
    assert "PERMISSION_DENIED" in err
    code, out, err = run("mneme", "admin", "reload", **where, MNEME_API_KEY=admin)
    assert (code, out) == (0, "2 API keys\n"), err
    client = server.client(api_key=user)
    client.generate("abc", max_tokens=1, request_id="logged")
    assert run("mneme", "admin", "log-level", "warning", **where, MNEME_API_KEY=admin)[0] == 0
    client.generate("abc", max_tokens=1, request_id="not-logged")
    assert run("mneme", "admin", "log-level", "info", **where, MNEME_API_KEY=admin)[0] == 0
    client.generate("abc", max_tokens=1, request_id="logged-again")
    wait_for(lambda: "logged-again" in server.log, "the line of the last request")
    assert "=logged " in server.log
    assert "not-logged" not in server.log
    assert run("mneme", "admin", "log-level", "loud", **where, MNEME_API_KEY=admin)[0] == 2


# --- TLS ---


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
    certificates.replace("live.key", "server2.key")
    wait_for(lambda: served() == "server2", "the new certificate")
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    next(long)  # goes on
    long.cancel()


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


# --- Starting ---


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


# --- Connections that lead nowhere ---


def test_silent_connections_are_closed(start, certificates):
    plain = start("--handshake-timeout", "1s")
    trusted = mneme.tls_credentials(certificates.path("ca.pem"))
    secure = start(
        *("--handshake-timeout", "1s", *tls_flags(certificates)),
        client_options={"credentials": trusted},
    )
    for server in (plain, secure):
        sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        sockets[0].sendall(b"PRI * HTTP/2.0\r\n")  # half a greeting
        start_time = time.monotonic()
        for connection in sockets:
            connection.settimeout(10)
            with contextlib.suppress(ConnectionError):
                while connection.recv(4096):
                    pass
            connection.close()
        assert time.monotonic() - start_time < 8
        assert server.client().generate("abc", max_tokens=1)


def frame(kind, flags, stream, payload):
    """Of HTTP/2."""
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def test_strangers_are_refused_before_their_message_is_there(start):
    server = start(environment={"MNEME_API_KEY": "a-key-of-enough-length"})
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/mneme.v1.Inference/Generate",
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    header = b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    announced = b"\x00" + (10_000_000).to_bytes(4, "big")  # of which nothing more comes
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(4, 0, 0, b"")  # SETTINGS
            + frame(1, 4, 1, header)  # HEADERS
            + frame(0, 0, 1, announced)  # DATA
        )
        received = b""
        while b"API key is needed" not in received:
            more = connection.recv(4096)
            assert more, "the server closed the connection without a word"
            received += more


def test_a_client_that_is_gone_without_a_word_is_noticed(start, bin_dir):
    server = start("--keepalive-time", "1s", "--keepalive-timeout", "500ms")
    client = server.client()
    words = ("generate", "abc", "--max-tokens", "100000000", "--ignore-eos")
    with subprocess.Popen(
        [bin_dir / "mneme", *words, "--server", server.target],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as frozen:
        try:
            wait_for(lambda: client.info().statistics.requests_running == 1, "its request")
            frozen.send_signal(signal.SIGSTOP)
            wait_for(lambda: client.info().statistics.requests_running == 0, "its end")
        finally:
            frozen.kill()


def test_headers_have_a_size(start):
    server = start("--max-header-size", "2KiB")
    with grpc.insecure_channel(server.target) as channel:
        info = channel.unary_unary("/mneme.v1.Inference/GetInfo")
        assert info(b"", timeout=10, metadata=[("x-small", "x" * 500)])
        with pytest.raises(grpc.RpcError) as caught:
            info(b"", timeout=10, metadata=[("x-large", "x" * 5000)])
        # gRPC refuses the call, and closes its connection.
        refusals = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
        assert caught.value.code() in refusals
        assert info(b"", timeout=10, wait_for_ready=True)


def test_prompts_have_a_size(start):
    client = start("--max-prompt-tokens", "10").client()
    assert client.generate("a" * 9, max_tokens=1)
    with pytest.raises(mneme.InvalidArgument, match="--max-prompt-tokens"):
        client.generate("a" * 20, max_tokens=1)
