#!/usr/bin/env python3
"""A process with the handles of another's client in its memory, and a file of the driver of its own: planted.py CLIENT SECONDS."""
import array
import os
import sys
import time

control = os.open("/dev/nvidiactl", os.O_RDWR)
client = int(sys.argv[1])
words = array.array("I", [client, 0x5C000002, 7, 0] * 200 + [word for handle in range(0x5C000000, 0x5C000100) for word in (handle, 1)])
print("ready", flush=True)
time.sleep(float(sys.argv[2]))
print(len(words), control)
