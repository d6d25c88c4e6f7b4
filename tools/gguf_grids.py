#!/usr/bin/env python3
"""Prints src/num/gguf_grids.h from the tables of the Python package `gguf` (MIT).

The codebooks are numbers found by search, so they are data: taken over, not derived. A row of values
is packed into 16 bits, 2 bits a value (8 of them) or 3 (4 of them), first value lowest.
"""
import sys

from gguf import quants

TABLES = [("iq1s", quants.IQ1_S, 2), ("iq2xxs", quants.IQ2_XXS, 2), ("iq2xs", quants.IQ2_XS, 2),
          ("iq2s", quants.IQ2_S, 2), ("iq3xxs", quants.IQ3_XXS, 3), ("iq3s", quants.IQ3_S, 3)]


def main():
    print("/* Codebooks of ggml's IQ types, packed: value j of row i is map[(t[i] >> bits * j) & mask].\n"
          " * Made by tools/gguf_grids.py. Copyright (c) 2023-2026 The ggml authors; MIT licence, see\n"
          " * LICENSES/MIT-ggml.txt. */\n"
          "#ifndef KD_NUM_GGUF_GRIDS_H\n#define KD_NUM_GGUF_GRIDS_H\n\n#include <stdint.h>\n\n"
          "/* Where they lie: a device's code says it before. */\n"
          "#ifndef KD_GRID\n#define KD_GRID static const\n#endif\n\n"
          "// clang-format off")
    for name, cls, bits in TABLES:
        cls.init_grid()
        rows, width = cls.grid_shape
        back = {float(v): i for i, v in enumerate(cls.grid_map)}
        packed = [sum(back[float(v)] << (bits * j) for j, v in enumerate(row))
                  for row in cls.grid.reshape(rows, width)]
        print(f"KD_GRID uint16_t grid_{name}[{rows}] = {{")
        for i in range(0, rows, 12):
            print("    " + " ".join(f"{v}," for v in packed[i:i + 12]))
        print("};")
    print("// clang-format on\n\n#endif")


if __name__ == "__main__":
    sys.exit(main())
