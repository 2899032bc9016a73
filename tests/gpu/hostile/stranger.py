"""A program of another user that costs whoever looks into it much: stranger.py MODE [ARGUMENT]

It opens /dev/nvidia0, as programs that use a GPU do, prints `ready`, and stays until its standard input ends. MODE:
  environment     an environment of 2 GiB, by PR_SET_MM_MAP
  sections        stays in code of an ELF file that says it has forty million sections
  names           stays in a function whose C++ name of 200 bytes is 15 MB long when it is written out
  fifos           has mapped files that were replaced by FIFOs
  fuse FOLDER     has mapped a file of the file system that `silent.py` serves: nobody answers who reads it
"""

import ctypes
import mmap
import os
import struct
import sys
import tempfile

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
PAGE, CODE, HEADERS = 4096, 0x800, 0x180
# mov $34,%eax; syscall (pause); jmp back to it.
PAUSES = bytes([0xB8, 34, 0, 0, 0, 0x0F, 0x05, 0xEB, 0xF7])


def environment():
    size = 2 << 30
    memory = libc.mmap(None, size, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)
    fields = open("/proc/self/stat").read().rsplit(") ", 1)[1].split()
    field = lambda n: int(fields[n - 3])  # as proc(5) counts them
    heap_end = libc.sbrk
    heap_end.restype = ctypes.c_void_p
    places = [field(26), field(27), field(45), field(46), field(47), heap_end(0), field(28), field(48), field(49)]
    map_ = struct.pack("<11QQIi", *places, memory, memory + size, 0, 0, -1)
    if libc.prctl(35, 14, map_, len(map_), 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_MM_MAP")


def elf(sections=0, name=b""):
    """An ELF file with one page of code; with so many sections in its header, or with a function of this name."""
    page = bytearray(PAGE)
    put = lambda at, data: page.__setitem__(slice(at, at + len(data)), data)
    put(0, b"\x7fELF\x02\x01\x01")
    put(16, struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0x100, HEADERS, 0, 64, 56, 1, 64, 0 if sections else 4, 0 if sections else 3))
    put(0x100, struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, PAGE, PAGE, PAGE))
    header = lambda n, kind, *values: put(HEADERS + 64 * n, struct.pack("<IIQQQQIIQQ", 0, kind, *values))
    if sections:
        header(0, 0, 0, 0, 0, sections, 0, 0, 0, 0)
    else:
        header(1, 1, 6, CODE, CODE, len(PAUSES), 0, 0, 0, 0)
        header(2, 2, 0, 0, 0x300, 48, 3, 0, 8, 24)
        header(3, 3, 0, 0, 0x400, len(name) + 2, 0, 0, 0, 0)
        put(0x318, struct.pack("<IBBHQQ", 1, 0x12, 0, 1, CODE, len(PAUSES)))
        put(0x401, name)
    put(CODE, PAUSES)
    return bytes(page), HEADERS + 64 * sections if sections else PAGE


def doubling(levels):
    """The mangled name of a function whose argument's type has two of the one before it, so many times."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    number = lambda n: (number(n // 36) if n >= 36 else "") + digits[n % 36]
    return "_Z1fPFviiE" + "".join(f"PFvS{number(2 * n)}_S{number(2 * n)}_E" for n in range(levels))


def mapped(path, data, size):
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o755)
    os.write(file, data)
    os.ftruncate(file, size)
    return libc.mmap(None, PAGE, 5, mmap.MAP_PRIVATE, file, 0)


def stays_in(code):
    """Its first thread never returns from there: another one waits for the end."""
    import threading

    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print("ready", os.getpid(), flush=True)
    ctypes.CFUNCTYPE(None)(code)()


def main():
    mode, folder = sys.argv[1], tempfile.mkdtemp()
    # Held, never used.
    gpu = os.open("/dev/nvidia0", os.O_RDWR)
    if mode == "environment":
        environment()
    elif mode in ("sections", "names"):
        data, size = elf(40_000_000) if mode == "sections" else elf(0, doubling(18).encode())
        stays_in(mapped(f"{folder}/{mode}.so", data, size) + CODE)
    elif mode == "fifos":
        for n in range(8):
            path = f"{folder}/lib{n}.so"
            mapped(path, *elf())
            os.unlink(path)
            os.mkfifo(path, 0o666)
    elif mode == "fuse":
        file = os.open(os.path.join(sys.argv[2], "silent"), os.O_RDONLY)
        libc.mmap(None, PAGE, 1, mmap.MAP_PRIVATE, file, 0)
    else:
        sys.exit(__doc__)
    print("ready", os.getpid(), flush=True)
    sys.stdin.read()
    os.close(gpu)


if __name__ == "__main__":
    main()
