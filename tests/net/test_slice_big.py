#!/usr/bin/env python3
# labels: long
# timeout: 900
"""12 layers of 16 experts out of a K3 of 594 GB that a server computes byte for byte: no more than 512 MB of memory,
and the bytes of their places. Needs 12 GB of disk."""
import os
import pathlib
import random
import resource
import shutil
import sys
import tempfile
import time

from range_server import Computed, RangeServer
from slice_check import BLOCKS, Gguf
from test_slice import k3_head, run

PEAK_MB = 512


def main():
    BLOCKS[19] = (256, 50)
    if shutil.disk_usage(tempfile.gettempdir()).free < 20 << 30:
        print("skipped: less than 20 GB free in %s" % tempfile.gettempdir())
        return 77
    head, data = k3_head()
    whole = Computed(len(head) + data, 1, head)
    with tempfile.TemporaryDirectory(prefix="kd-slice-big-") as d, RangeServer() as s:
        d = pathlib.Path(d)
        s.add_computed("/K3-UD-IQ1_S.gguf", size=len(head) + data, seed=1, head=head)
        began = time.monotonic()
        run("slice", s.url + "/K3-UD-IQ1_S.gguf", d / "big.gguf", "-q", "--layers", "12", "--experts", "16", limit=800)
        seconds = time.monotonic() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        (d / "head.gguf").write_bytes(head)
        with open(d / "head.gguf", "r+b") as f:
            f.truncate(len(head) + data)
        src, dst = places(d / "head.gguf"), places(d / "big.gguf")
        size = os.path.getsize(d / "big.gguf")
        assert len(dst) == 329 and 11.4e9 < size < 11.8e9, (len(dst), size)
        with open(d / "big.gguf", "rb") as f:
            for name in random.Random(5).sample(sorted(dst), 120):
                at, n = dst[name]
                from_ = src[name][0]  # the first layers and experts keep names and order
                for back in (0, max(0, n - 4096)):
                    f.seek(at + back)
                    take = min(4096, n - back)
                    assert f.read(take) == whole.read(from_ + back, take), name
        print("test_slice_big: %.2f GB in %.0f s, peak %.0f MB" % (size / 1e9, seconds, peak))
        assert peak < PEAK_MB, peak
    return 0


def places(path):
    """name -> (offset in the file, bytes)."""
    g = Gguf(path, places=True)
    return g.places


if __name__ == "__main__":
    sys.exit(main())
