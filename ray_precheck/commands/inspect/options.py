"""The words of `inspect` with a line for each, which the parser and the hint about unknown commands know
without loading what the words do."""

WORDS = {
    "ls": "list operators by name and type; alone: the types and how often they are there",
    "ni": "node information: inputs, outputs, attributes and files of an operator",
    "pt": "print a tensor with its shape, dtype, Max, Min and Mean, and write it as text",
    "cp": "compare two tensors item by item",
    "ac": "auto check: fusions and overflows; with -c the whole comparison and its first difference",
    "vc": "compare the whole capture with the other one",
    "vcs": "the operators of the last vc whose cosine is below a limit",
    "dc": "decode dumps of an NPU into .npy files, with CANN's msaccucmp",
    "where": "the line of source and the module of a call",
    "up": "who gave each input of a call",
    "down": "who got each output of a call",
    "why": "the error of a call: its own, and what its inputs brought with them",
    "check": "check a call now: run it and compare with the float64 reference",
    "hist": "how the values of a tensor are spread",
    "diff": "a call against that of the other capture (--with)",
    "run": "run a shell command (! CMD does the same)",
    "help": "the words, or the options of one",
    "python": "a console with the tensors",
}
