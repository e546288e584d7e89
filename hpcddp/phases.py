"""The names of a step's phases: in records, in reports and in what measures them. Knows no clock.

`comm_s`, all communication, hidden or not, is recorded beside them.
"""

# They add up to the step. Reductions that run beside backward are not among them; what of them
# outlasts it is.
PHASES = (
    "data_wait_s",
    "host_to_device_s",
    "forward_s",
    "backward_s",
    "exposed_comm_s",
    "optimizer_s",
    "other_s",
)
# What DataParallel spends between replicas; nothing hides it, so it is exposed as a whole.
DP_PARTS = ("broadcast_s", "scatter_s", "gather_s", "reduce_s")
