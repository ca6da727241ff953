"""RLlib as a learner: `--algo rllib:NAME`, in a simulator or from the store, with models like any other's."""
