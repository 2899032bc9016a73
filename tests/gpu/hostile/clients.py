"""Asks `nvcap serve` while 256 other clients hold connections: clients.py ADDRESS PORT PID

A quarter of them send requests and read no answer, a quarter an unfinished header, a quarter one request and no more, a quarter nothing.
Prints how long answers took, ms, and the most memory that the process had; status 1 where one took 100 ms or more, or failed, or it had 256 MiB.
"""

import socket
import sys
import time
import urllib.request


def hold(address, kind):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.settimeout(3)
    s.connect(address)
    s.setblocking(False)
    try:
        for _ in range(20 if kind == 0 else 1):
            s.send([b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 2000, b"GET / HTTP/1.1\r\nX: ", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b""][kind])
    except (BlockingIOError, ConnectionError):
        pass
    return s


def main():
    host, port, pid = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    held = [hold((host, port), n % 4) for n in range(256)]
    took, failed = {"/metrics": [], "/healthz": []}, []
    for _ in range(100):
        for path, all_ in took.items():
            began = time.monotonic()
            try:
                urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=20).read()
            except OSError as e:
                failed.append(f"{path}: {e}")
            all_.append(1e3 * (time.monotonic() - began))
        time.sleep(0.2)
    status = open(f"/proc/{pid}/status").read()
    peak = next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmHWM"))
    for path, all_ in took.items():
        all_.sort()
        print(f"{path}: median {all_[50]:.1f} ms, 95 % {all_[95]:.1f}, most {all_[-1]:.1f}")
    slowest = max(max(all_) for all_ in took.values())
    print(f"{len(held)} clients held, {len(failed)} of 200 answers failed {failed[:2]}; most {slowest:.1f} ms; serve had {peak} MiB")
    sys.exit(int(bool(failed) or slowest >= 100 or peak >= 256))


if __name__ == "__main__":
    main()
