"""Quantities in words. Knows no check."""


def bytes_text(count: float) -> str:
    """`1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def time_text(seconds: float) -> str:
    """`12 ms`, with the unit in which it is easy to read."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if abs(seconds) * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def rate_text(gb_per_s: float) -> str:
    """`1.25 GB/s`, or MB/s where that is easier to read."""
    return f"{gb_per_s:.3g} GB/s" if gb_per_s >= 1 else f"{gb_per_s * 1e3:.3g} MB/s"
