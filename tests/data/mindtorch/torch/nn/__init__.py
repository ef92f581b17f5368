"""torch.nn of the stand-in: its functional alone."""

from torch.nn import functional  # noqa: F401
