"""What can run on a cluster. Each job implements the protocols of `runtime.job`."""
