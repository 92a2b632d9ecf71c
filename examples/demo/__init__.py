"""`make demo`: a cluster, the operator, three agents at a queue, and what happens to them."""
