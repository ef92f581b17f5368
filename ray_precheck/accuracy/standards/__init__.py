"""From numbers to a verdict: the standards, each in a module of its own."""

# The standards by name: the module and its class. A table of texts, because options and their help, which
# load no NumPy, name the standards too.
STANDARD_NAMES = {
    "msprobe": "msprobe:Msprobe",
    "auto": "auto.rule:Auto",
    "published": "published:Published",
    "benchmark": "benchmark:Benchmark",
    "absolute": "absolute:Absolute",
    "binary": "binary:Binary",
    "ulp": "ulp:Ulp",
    "thousandth": "thousandth:Thousandth",
}
