"""TORCHELASTIC_USE_AGENT_STORE says that the launcher has a store at MASTER_PORT already."""
# differs: agent-store
import os

print(os.environ["TORCHELASTIC_USE_AGENT_STORE"])
