"""The ownership protocol as values and arithmetic: what is on the wire, and what a control server decides.

Nothing in here waits, reads a clock or opens anything: instants, fresh secrets and received bytes are
arguments. The control server (``tenure.control``), its client (``tenure.ownership``) and the backend
library share this package, so that the two ends cannot disagree.
"""
