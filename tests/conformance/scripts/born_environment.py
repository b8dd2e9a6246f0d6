"""The names that torchrun adds to the environment, and those values that are neither ports nor paths."""
# nprocs: 3
import os

own = ("HELPERS_", "NCCL_SOCKET", "TP_SOCKET", "GLOO_SOCKET")
added = sorted(set(os.environ) - set(os.environ["NAMES_BEFORE"].split()))
for name in [name for name in added if not name.startswith(own)]:
    has_a_value_to_compare = not name.endswith(("PORT", "ADDR", "RUN_ID", "FILE", "USE_AGENT_STORE"))
    print(name, repr(os.environ[name]) if has_a_value_to_compare else "")
