"""What the first decode in a process costs beyond importing torch and transformers, in CPU seconds.

    python bench/first_decode.py
"""

from __future__ import annotations

import time

LOOP = "EVQLVESGGGLVQPGGSLRLSCAAS________WVRQAPGKGLEWVA"


def main() -> None:
    began = time.process_time()
    import torch
    import transformers.modeling_utils  # noqa: F401  (transformers imports itself lazily)

    imported = time.process_time()
    import trajspec as ts

    model = ts.load_model("antiberty")
    loaded = time.process_time()
    row = ts.infill(model, LOOP)[0]
    done = time.process_time()
    again = ts.infill(model, LOOP)[0]
    end = time.process_time()
    assert again.token_ids == row.token_ids
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {row.calls} calls")
    for name, seconds in (
        ("import torch, transformers", imported - began), ("load antiberty", loaded - imported),
        ("first decode", done - loaded), ("first decode, with loading", done - imported), ("second decode", end - done),
    ):  # fmt: skip
        print(f"{name:28} {seconds:6.2f} s")


if __name__ == "__main__":
    main()
