"""A Ray cluster on EC2 whose nodes are terminated when they are done, and what it leaves behind.

launcher.py has the plan, writes it as a file for `ray up` and runs Ray's own commands; prerequisites.py makes key pair,
closed security group and role, and says what machines and user may do; leftovers.py finds what is still there and how
each thing is removed. aws.py has the clients of AWS.
"""

TAG = "sparring-cluster"  # on everything that we make; its value is the cluster's name
RAY_TAG = "ray-cluster-name"  # on most of what a bare Ray makes
RAY_PREFIX = "ray-autoscaler"  # of the names of the rest: key pairs, roles, instance profiles
