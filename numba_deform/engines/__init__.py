"""The two engines, which run one kernel: a Hopper GPU, and the CPU engine that knows the rules."""
