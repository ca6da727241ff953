"""A Ray cluster on EC2 whose nodes are terminated when they are done, and what it leaves behind.

plan.py says what is wanted, ray_yaml.py writes it as a file for `ray up`, policy.py what its machines and its user may
do, prerequisites.py makes key pair, closed security group and role, launcher.py runs Ray's own commands, leftovers.py
finds what is still there and how each thing is removed. aws.py turns AWS's refusals into sentences.
"""

TAG = "sparring-cluster"  # on everything that we make; its value is the cluster's name
