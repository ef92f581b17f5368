"""Where a run runs: the cluster, its nodes, their devices, and the slots that are made of them."""
