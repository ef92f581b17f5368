"""The jobs that can run on a cluster, a room for each. Each implements the protocols of `runtime.job`."""
