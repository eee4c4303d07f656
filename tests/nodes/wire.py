#!/usr/bin/env python3
"""A cable between two network namespaces: two TAP devices, and this process between them. It delays, drops and slows
down packets, because the kernel of a test machine may have neither netem nor tbf.

    wire.py NAMESPACE DEVICE ADDRESS/BITS OTHER_NAMESPACE OTHER_DEVICE SEED

Lines of JSON on its standard input change the rules at once, and each is answered with a line:
  delay    seconds that a packet takes in each direction
  loss     share of packets that are lost, 0 to 1, in each direction
  rate     bytes a second in each direction; 0: as fast as it goes
  out, in  "all", "control", "data" or "none": what passes from the first namespace to the other, and back. Control is
           TCP with the port 9465 at either end; data is all other TCP.
"""
import collections
import ctypes
import fcntl
import json
import os
import random
import select
import struct
import subprocess
import sys
import time

PORT = 9465
CLONE_NEWNET, TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x40000000, 0x400454CA, 0x0002, 0x1000
QUEUE = 2000  # packets that may wait in one direction; more are lost, as in a router
libc = ctypes.CDLL(None, use_errno=True)


def enter(namespace):
    with open(f"/run/netns/{namespace}", "rb") as handle:
        if libc.setns(handle.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")


def tap(namespace, name):
    enter(namespace)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def kind_of(packet):
    """Returns "control", "data", or "other" for packets that are not TCP over IPv4, such as ARP. These always pass."""
    if len(packet) < 38 or packet[12:14] != b"\x08\x00" or packet[23] != 6:
        return "other"
    at = 14 + 4 * (packet[14] & 15)
    return "control" if PORT in struct.unpack("!HH", packet[at:at + 4]) else "data"


class Direction:
    def __init__(self, source, target, which):
        self.source, self.target, self.which = source, target, which
        self.waiting = collections.deque()  # (due, packet)
        self.free_at = 0.0

    def take(self, rules, dice, now):
        for _ in range(64):
            try:
                packet = os.read(self.source, 65536)
            except BlockingIOError:
                return
            except OSError:  # the network device is down
                return
            kind = kind_of(packet)
            passes = rules[self.which] == "all" or kind == "other" or rules[self.which] == kind
            if not passes or dice.random() < rules["loss"] or len(self.waiting) >= QUEUE:
                continue
            due = now + rules["delay"]
            if rules["rate"]:
                self.free_at = max(self.free_at, now) + len(packet) / rules["rate"]
                due += self.free_at - now
            self.waiting.append((due, packet))

    def give(self, now):
        while self.waiting and self.waiting[0][0] <= now:
            try:
                os.write(self.target, self.waiting.popleft()[1])
            except OSError:
                pass


def main():
    namespace, device, address, other, other_device, seed = sys.argv[1:]
    dice = random.Random(int(seed))
    here, there = tap(namespace, device), tap(other, other_device)
    for name, dev in ((namespace, device), (other, other_device)):
        subprocess.run(["ip", "-n", name, "link", "set", dev, "up"], check=True)
    subprocess.run(["ip", "-n", namespace, "addr", "add", address, "dev", device], check=True)
    rules = {"delay": 0.0, "loss": 0.0, "rate": 0, "out": "all", "in": "all"}
    directions = [Direction(here, there, "out"), Direction(there, here, "in")]
    print("ready", flush=True)
    commands = b""
    while True:
        now = time.monotonic()
        due = min((d.waiting[0][0] for d in directions if d.waiting), default=now + 1)
        readable, _, _ = select.select([here, there, 0], [], [], max(0.0, due - now))
        now = time.monotonic()
        if 0 in readable:
            got = os.read(0, 4096)
            if not got:
                return
            commands += got
            while b"\n" in commands:
                line, commands = commands.split(b"\n", 1)
                rules.update(json.loads(line))
                print("ready", flush=True)
        for direction in directions:
            if direction.source in readable:
                direction.take(rules, dice, now)
            direction.give(time.monotonic())


main()
