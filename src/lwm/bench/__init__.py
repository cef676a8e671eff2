"""Speed by stage as ratios within one run, a module per workload; growth, start-up, a guard."""
