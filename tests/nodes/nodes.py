"""Shared by the scripts about several nodes: a head, its agents, and TLS connections that a test makes itself.

All nodes are on loopback. Each nsad has its own folders and socket, and the head's port is any free one.
"""
import contextlib
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import harness as e2e  # noqa: E402
from harness import LIMIT, expect, wait_for  # noqa: E402


def configure_head(node, port=0, extra="", slots=2, address="127.0.0.1"):
    node.config(f"""schema = 1
[metrics]
port = 0
[resources]
cpu_slots = {slots}
gpus = "none"
[storage]
reserve_mib = 8
[cluster]
address = "{address}"
port = {port}
{extra}
""")


def start_head(node, extra="", slots=2):
    """Starts nsad as a head, and records its port, so that it is the same after a restart."""
    configure_head(node, extra=extra, slots=slots)
    node.run("daemon", "start")
    address = wait_for("the head's port", lambda: own(node)["address"])
    configure_head(node, port=address.rsplit(":", 1)[1], extra=extra, slots=slots)
    return address


def own(node):
    return node.items("node", "ls")[0]


def state_of(head, name):
    return next((n["state"] for n in head.items("node", "ls", "-a") if n["name"] == name), "")


def wait_state(head, name, state):
    wait_for(f"node {name} to be {state}", lambda: state_of(head, name) == state)


def token_of(head):
    return head.run("node", "token", "-q").stdout.strip()


def audit(head, verb):
    return [row for row in head.items("audit", "-n", "1000") if row["verb"] == verb]


def wait_refusal(head, words):
    """Waits for a row of the audit that says so."""
    return wait_for(f"'{words}' in the audit", lambda: next(
        (row for row in audit(head, "node-call") if words in row["why"] and row["result"] == "refused"), None))


class Agent:
    """nsad on another node, with its own folders, socket and log."""

    def __init__(self, head, name):
        self.head, self.name = head, name
        self.folder = head.folder / "agents" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket = self.folder / "nsad.sock"
        self.log = self.folder / "nsad.log"
        self.process = None
        self.environment = {}  # in addition to the head's
        (self.folder / "nsad.toml").write_text('schema = 1\n[resources]\ngpus = "none"\n')

    def command(self, address, *options):
        return [str(self.head.binaries / "nsad"), "--state-folder", str(self.folder / "state"), "--socket", str(self.socket),
                "--config", str(self.folder / "nsad.toml"), "--join", address, *options]

    def start(self, address, *options):
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.command(address, *options), stdout=log, stderr=log,
                                            env={**self.head.environment, **self.environment})
        return self

    def join(self, address):
        """Joins with a new token. Returns when the head hears the node."""
        self.start(address, "--token", token_of(self.head), "--name", self.name)
        wait_state(self.head, self.name, "ready")
        return self

    def refused(self, address, *options):
        """Starts the node, and returns what it says when it ends by itself."""
        done = subprocess.run(self.command(address, *options), capture_output=True, text=True, env=self.head.environment,
                              timeout=LIMIT)
        expect(done.returncode != 0, f"{options} was not refused")
        return done

    def status(self):
        return self.head.json("--socket", self.socket, "daemon", "status")

    def send(self, number):
        self.process.send_signal(number)

    def end(self, number=signal.SIGTERM):
        """Ends the node. Returns its exit status."""
        if self.process is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        return self.process.wait(timeout=LIMIT)

    def wait_end(self):
        return self.process.wait(timeout=LIMIT)

    def said(self):
        return self.log.read_text(errors="replace")

    def membership_file(self):
        return self.folder / "state" / "cluster" / "membership.json"

    def membership(self):
        return json.loads(self.membership_file().read_text())


def kill_head(node):
    """Kills the head with kill -9 and returns the time. It does not wait."""
    node.kill_daemon()
    return time.time()


def logged(path, words, since=0.0):
    """Returns when the first log line with these words after `since` was written, in seconds since the epoch."""
    for line in path.read_text(errors="replace").splitlines():
        stamp, _, rest = line.partition(" ")
        if words in rest and stamp.endswith("Z") and e2e.seconds_of(stamp) >= since - 0.001:
            return e2e.seconds_of(stamp)
    return None


class Caller:
    """A TLS connection to the head's port that the test itself makes."""

    def __init__(self, address, folder=None, key=None, certificate=None):
        host, port = address.rsplit(":", 1)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if key:
            for name, text in (("key.pem", key), ("certificate.pem", certificate)):
                (folder / name).write_text(text)
            context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        self.plain = socket.create_connection((host, int(port)), timeout=LIMIT)
        self.tls = context.wrap_socket(self.plain)

    def send(self, data):
        self.tls.sendall(data)

    def answer(self):
        """Returns everything until the head closes the connection. Empty if the head refuses at once."""
        text = b""
        with contextlib.suppress(OSError):
            while part := self.tls.recv(65536):
                text += part
        return text.decode(errors="replace")

    def close(self):
        with contextlib.suppress(OSError):
            self.tls.close()


def openssl(*arguments, cwd=None, input=None):
    try:
        done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, cwd=cwd, input=input)
    except FileNotFoundError as error:
        raise e2e.Skipped("the program openssl is not installed") from error
    expect(done.returncode == 0, f"openssl {arguments}: {done.stderr}")
    return done.stdout


def sign(folder, authority_key, authority_certificate, name, begin, end):
    """Makes a key, and a certificate for `name` that an authority signs. It is valid from `begin` to `end`
    (YYYYMMDDHHMMSSZ)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.txt").write_text("")
    (folder / "serial").write_text("0123456789ABCDEF0123456789ABCDEF\n")
    (folder / "ca.cnf").write_text("""[ca]
default_ca = own
[own]
database = index.txt
serial = serial
new_certs_dir = .
default_md = sha256
policy = any
unique_subject = no
x509_extensions = node
[any]
commonName = supplied
[node]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth,clientAuth
""")
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "own.key", cwd=folder)
    openssl("req", "-new", "-key", "own.key", "-subj", f"/CN={name}", "-out", "own.csr", cwd=folder)
    openssl("ca", "-batch", "-notext", "-config", "ca.cnf", "-cert", authority_certificate, "-keyfile", authority_key,
            "-startdate", begin, "-enddate", end, "-in", "own.csr", "-out", "own.crt", cwd=folder)
    return (folder / "own.key").read_text(), (folder / "own.crt").read_text()


def main(case, seeds=1):
    e2e.main(case, needs=("nsactl", "nsad"), seeds=seeds)
