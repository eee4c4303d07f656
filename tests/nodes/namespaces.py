"""Hosts of a test as network namespaces, joined by a bridge in one more namespace. Needs root and iproute2. The
host's own network is not changed.
"""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import nodes
from nodes import Agent, expect, wait_for

HEAD, PORT = "10.77.0.1", 9465


def ip(*arguments, check=True):
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise nodes.e2e.Skipped("the program ip (iproute2) is not installed") from error
    expect(not check or done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}")
    return done


class Network:
    """Namespaces joined by a bridge in one more namespace. Those in `wired` are on a cable that can be made slow,
    lossy and deaf (wire.py)."""

    def __init__(self, count, wired=(), seed=1):
        self.wires = {}
        self.prefix = f"nsa{os.getpid()}"
        self.switch = f"{self.prefix}sw"
        if ip("netns", "add", self.switch, check=False).returncode != 0:
            raise nodes.e2e.Skipped("network namespaces cannot be made: it needs root")
        self.names = []
        ip("-n", self.switch, "link", "add", "br0", "type", "bridge", "forward_delay", "0", "stp_state", "0")
        ip("-n", self.switch, "link", "set", "br0", "up")
        for number in range(1, count + 1):
            name = f"{self.prefix}n{number}"
            ip("netns", "add", name)
            self.names.append(name)
            if number in wired:
                ip("-n", name, "link", "set", "lo", "up")
                self.wires[number] = self.open_wire(name, number, seed)
                ip("-n", self.switch, "link", "set", f"p{number}", "master", "br0", "up")
                continue
            ip("-n", self.switch, "link", "add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", self.switch, "link", "set", f"p{number}", "master", "br0", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def open_wire(self, name, number, seed):
        script = pathlib.Path(__file__).resolve().parent / "wire.py"
        wire = subprocess.Popen([sys.executable, str(script), name, "eth0", f"10.77.0.{number}/24", self.switch, f"p{number}",
                                 str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if wire.stdout.readline() != "ready\n":
            raise nodes.e2e.Skipped("a TAP device cannot be made: it needs /dev/net/tun")
        return wire

    def change(self, number, **rules):
        """Changes the rules of a wire (wire.py). They are in effect when this returns."""
        wire = self.wires[number]
        wire.stdin.write(json.dumps(rules) + "\n")
        wire.stdin.flush()
        expect(wire.stdout.readline() == "ready\n", "a wire has ended")

    def inside(self, number):
        return ["ip", "netns", "exec", self.names[number - 1]]

    def sent_bytes(self, number):
        """Returns the bytes that this host has sent on its link."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        return int(subprocess.run([*self.inside(number), "cat", path], capture_output=True, text=True, check=True).stdout)

    def cut(self, number, up=False):
        ip("-n", self.switch, "link", "set", f"p{number}", "up" if up else "down")

    def silence(self, number, towards, on=True):
        """What one host sends to another is lost without any message: it goes to an address that no host has."""
        arguments = ["-n", self.names[number - 1], "neigh"]
        if on:
            ip(*arguments, "replace", f"10.77.0.{towards}", "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
        else:
            ip(*arguments, "del", f"10.77.0.{towards}", "dev", "eth0")

    def close(self):
        for wire in self.wires.values():
            wire.kill()
            wire.wait()
        for name in [*self.names, self.switch]:
            ip("netns", "del", name, check=False)


class RemoteAgent(Agent):
    def __init__(self, head, name, network, number):
        super().__init__(head, name)
        self.network, self.number = network, number

    def command(self, address, *options):
        return [*self.network.inside(self.number), *super().command(address, *options)]


def start_head(node, network, extra=""):
    """Starts nsad on the first host of the network. Nodes join it at HEAD:PORT."""
    return run_head(node, network.inside(1), extra)


def run_head(node, inside, extra="", slots=2, environment=None):
    """Runs nsad as a head, after the words that run a command on its host."""
    nodes.configure_head(node, port=PORT, extra=extra, slots=slots, address="0.0.0.0")
    log = node.state / "nsa" / "nsad.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    head = subprocess.Popen([*inside, str(node.binaries / "nsad"), "--log", str(log)], env={**node.environment, **(environment or {})})
    wait_for("the head", lambda: node.run("daemon", "status", check=False).returncode == 0 and nodes.own(node)["address"])
    return head


def ranks_of(folder):
    """Returns {(run, attempt): pids} of ranks whose attempts' folders are below `folder`. Zombies do not count."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"--run-id" not in words or not words[words.index(b"--attempt-folder") + 1].startswith(str(folder).encode()):
                continue
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                continue
            key = (words[words.index(b"--run-id") + 1].decode(), int(words[words.index(b"--attempt") + 1]))
            found.setdefault(key, []).append(int(pid))
    return found


def kill_ranks(folder):
    for pids in ranks_of(folder).values():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def end_all(node, agent, head, network):
    """Cleans up after a case, however it ended. What it started is ended, and nsad is reaped at once, since it is a
    child of this process."""
    if node.run("daemon", "status", check=False).returncode == 0:
        for run in node.items("ls"):
            node.run("cancel", run["id"], check=False)
    agent.end(signal.SIGKILL)
    kill_ranks(node.folder)
    if head:
        head.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(timeout=nodes.LIMIT)
    network.close()
