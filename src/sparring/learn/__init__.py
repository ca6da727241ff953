"""The pyramid: operators → networks → policies → algorithms, and the topologies that wire them."""
