"""The names of a step's phases, and of DataParallel: in records, in reports and in what measures
them. Knows no clock.

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
# What nothing hides, so that it is exposed as a whole: what DataParallel spends between replicas,
# and of DDP the broadcast of buffers, which is a part called `broadcast_s` too.
COMM_PARTS = ("broadcast_s", "scatter_s", "gather_s", "reduce_s")

# What replicas=dp is: torch's class on GPUs, and where there are none a twin that is not to be
# taken for it.
DP_ON_CPU, DP_ON_GPUS = "DataParallel algorithm on CPU threads", "torch.nn.DataParallel"
