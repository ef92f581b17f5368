"""The jobs that can run on a cluster. Each implements the protocols of `runtime.job`."""
