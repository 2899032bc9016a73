"""nvcap's JSON lines, for the checks."""
import json


def lines(path):
    with open(path) as f:
        for line in f:
            yield json.loads(line)


def ledger_of(path):
    """The last ledger; `None` where there is none. What lies before it may be a gigabyte: it is looked for at the end."""
    last = None
    with open(path, "rb") as f:
        f.seek(0, 2)
        f.seek(max(0, f.tell() - (4 << 20)))
        for line in f.read().splitlines():
            if line.startswith(b'{"type":"ledger"'):
                last = json.loads(line)
    return last
