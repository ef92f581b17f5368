"""From numbers to a verdict: the standards, a row of a table each."""

# The standards by name: the module and its class. A table of texts, because options and their help, which
# load no NumPy, name the standards too.
STANDARD_NAMES = {
    "msprobe": "msprobe:Msprobe",
    "auto": "auto:Auto",
    "published": "published:Published",
    "benchmark": "published:Benchmark",
    "absolute": "published:Absolute",
    "binary": "published:Binary",
    "ulp": "published:Ulp",
    "thousandth": "published:Thousandth",
}
