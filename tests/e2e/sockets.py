"""Lists the listening sockets of given processes, as the kernel shows them."""
import contextlib
import ipaddress
import os
import pathlib
import socket

LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp


def inodes_of(pid):
    """Returns the inodes of the sockets that the process has open."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(entry)
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def address_of(text):
    """Decodes an address of /proc/net/tcp or tcp6: hexadecimal words of four bytes in the machine's byte order."""
    words = [bytes.fromhex(text[i:i + 8])[::-1] for i in range(0, len(text), 8)]
    return ipaddress.ip_address(b"".join(words))


def tcp_listeners(pids):
    """Returns (pid, address, port) of every TCP socket on which one of the processes listens."""
    owners = {inode: pid for pid in pids for inode in inodes_of(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}") as f:
            for line in f.readlines()[1:]:
                fields = line.split()
                if fields[3] != LISTENING or int(fields[9]) not in owners:
                    continue
                address, port = fields[1].split(":")
                found.add((owners[int(fields[9])], str(address_of(address)), int(port, 16)))
    return found


def is_loopback(address):
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def abstract_names(pids):
    """Returns the names of the processes' abstract unix sockets, which no file mode protects."""
    inodes = {inode for pid in pids for inode in inodes_of(pid)}
    found = set()
    with open("/proc/net/unix", errors="replace") as f:
        for line in f.readlines()[1:]:
            fields = line.split()
            if len(fields) > 7 and fields[7].startswith("@") and int(fields[6]) in inodes:
                found.add(fields[7][1:])
    return found


def loopback_ports():
    """Returns ports on which any process of this host listens on loopback, or on every address."""
    ports = set()
    with open("/proc/net/tcp") as f:
        for line in f.readlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[1][:8] in ("0100007F", "00000000"):
                ports.add(int(fields[1].split(":")[1], 16))
    return ports


def connect(family, kind, address, seconds=0.2):
    """Returns a connected socket, or the error."""
    s = socket.socket(family, kind)
    s.settimeout(seconds)
    try:
        s.connect(address)
        return s
    except OSError as error:
        s.close()
        return error
