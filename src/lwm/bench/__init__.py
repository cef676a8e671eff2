"""Speed by stage, as ratios within one run: a module per workload."""
